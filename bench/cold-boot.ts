/** The same kernel and image as a capsule's, booted by plain QEMU: what starting a sandbox costs without any of our work. */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { bootImage } from "../src/host/images/boot.ts";
import { output, withAgent } from "./booted-agent.ts";
import { connect, type Rig } from "./rig.ts";
import { timed } from "./statistics.ts";

const bootDeadlineMs = 120_000;

export interface ColdBoots {
  /** Milliseconds from starting QEMU on the kernel to the agent's first answer. */
  toAgent: number[];
  /** The same to the result of a first /bin/true. */
  toExec: number[];
}

/** Taken once in a run, when they are first asked for. */
export function coldBoots(rig: Rig): Promise<ColdBoots> {
  let boots = taken.get(rig);
  if (boots === undefined) {
    boots = takeBoots(rig);
    taken.set(rig, boots);
  }
  return boots;
}

const taken = new WeakMap<Rig, Promise<ColdBoots>>();

async function takeBoots(rig: Rig): Promise<ColdBoots> {
  const boots: ColdBoots = { toAgent: [], toExec: [] };
  for (let round = 0; round < rig.rounds(6, 20); round++) {
    await withBootedVm(rig, async (folder, bootMs) => {
      boots.toAgent.push(bootMs);
      boots.toExec.push(bootMs + (await firstExec(folder)));
    });
  }
  return boots;
}

function firstExec(folder: string): Promise<number> {
  return withAgent(folder, (agent) => timed(() => output(agent, "/bin/true")));
}

/** A VM of the default shape, booted from its kernel in a folder of its own, with nobody connected to its sockets. */
export async function withBootedVm<T>(rig: Rig, work: (folder: string, bootMs: number) => Promise<T>): Promise<T> {
  const { vmm, images } = rig.machine;
  const nonce = randomBytes(16).toString("hex");
  const folder = join(rig.service.dataDir, "work", `bench-${nonce}`);
  const boot = { vmm, connect, image: images[0]!, machine: vmm.machine(1, 512), folder };
  try {
    const began = performance.now();
    const { vm, agent } = await bootImage({ ...boot, name: "bench", nonce, deadlineMs: bootDeadlineMs });
    const bootMs = performance.now() - began;
    agent.close();
    vm.release();
    try {
      return await work(folder, bootMs);
    } finally {
      await vmm.reap(nonce, vm.process);
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
