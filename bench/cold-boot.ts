/** A capsule's kernel and image booted by plain QEMU: the baseline of all starts. */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { bootImage } from "../src/host/images/boot.ts";
import { output, withAgent } from "./booted-agent.ts";
import { connect, type Fixture } from "./fixture.ts";
import { timed } from "./statistics.ts";

const bootDeadlineMs = 120_000;

export interface ColdBoots {
  /** Milliseconds from starting QEMU on the kernel to the agent's first answer. */
  toAgent: number[];
  /** The same to the result of a first /bin/true. */
  toExec: number[];
}

/** Measured once per run, at the first call. */
export function coldBoots(fixture: Fixture): Promise<ColdBoots> {
  let boots = taken.get(fixture);
  if (boots === undefined) {
    boots = takeBoots(fixture);
    taken.set(fixture, boots);
  }
  return boots;
}

const taken = new WeakMap<Fixture, Promise<ColdBoots>>();

async function takeBoots(fixture: Fixture): Promise<ColdBoots> {
  const boots: ColdBoots = { toAgent: [], toExec: [] };
  for (let round = 0; round < fixture.rounds(6, 20); round++) {
    await withBootedVm(fixture, async (folder, bootMs) => {
      boots.toAgent.push(bootMs);
      boots.toExec.push(bootMs + (await firstExec(folder)));
    });
  }
  return boots;
}

function firstExec(folder: string): Promise<number> {
  return withAgent(folder, (agent) => timed(() => output(agent, "/bin/true")));
}

/** Runs `work` with a VM of the default shape, booted in a folder of its own, with no connection to its sockets. */
export async function withBootedVm<T>(
  fixture: Fixture,
  work: (folder: string, bootMs: number) => Promise<T>,
): Promise<T> {
  const { vmm, images } = fixture.machine;
  const nonce = randomBytes(16).toString("hex");
  const folder = join(fixture.service.dataDir, "work", `bench-${nonce}`);
  const boot = { vmm, connect, image: images.default, machine: vmm.machine(1, 512), folder };
  try {
    const began = performance.now();
    const { vm, agent } = await bootImage({ ...boot, name: "bench", nonce, deadlineMs: bootDeadlineMs });
    const bootMs = performance.now() - began;
    agent.close();
    vm.detach();
    try {
      return await work(folder, bootMs);
    } finally {
      await vmm.reap(nonce, vm.process);
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
