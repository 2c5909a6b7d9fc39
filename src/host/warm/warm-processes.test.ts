/** Claims that fail, without processes. Real ones: test/faults/warm-processes.test.ts. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { waitFor } from "../../../test/wait-for.ts";
import type { Vm, WarmProcess, WarmSpec } from "../../vmm/vmm.ts";
import { StartScheduler } from "../capacity/start-scheduler.ts";
import { type CapsuleFile, readVm } from "../disk/capsule-folder.ts";
import { decodeMachine, encodeMachine } from "../disk/machine-record.ts";
import { Paths } from "../disk/paths.ts";
import { WarmProcesses } from "./warm-processes.ts";

/** Its fields are in the order of a VMM's machine. */
const machine: CapsuleFile["machine"] = {
  ...{ qemu: "10.0.2", qemuBuild: "a", accelerator: "tcg", cpu: "max", tscKhz: 2_000_000, devices: ["ports:1"] },
  ...{ vcpus: 1, memoryMb: 512 },
};
const capsule: CapsuleFile = {
  ...{ parent: "bases/minimal", parentSha256: null, machine },
  image: { name: "minimal", hash: "1" },
};
const saved = { memory: null, state: "state", protocol: 1 };
const process: WarmProcess["process"] = { pid: 1, startTicks: 1 };

const data = mkdtempSync(join(tmpdir(), "capsule-warm-processes-"));
after(() => rmSync(data, { recursive: true, force: true }));

let failures: unknown[];
let killed: number;
beforeEach(() => {
  failures = [];
  killed = 0;
});

/** A pool with one ready process, whose claim ends as `outcome` does. */
async function ready(outcome: () => Promise<Vm>): Promise<WarmProcesses> {
  const paths = new Paths(data);
  mkdirSync(paths.capsule("cl-1"), { recursive: true });
  const { promise: made, resolve } = Promise.withResolvers<void>();
  const warm = async (spec: WarmSpec): Promise<WarmProcess> => {
    queueMicrotask(resolve);
    const kill = async () => void killed++;
    return {
      spec,
      process,
      ended: new Promise(() => {}),
      claim: outcome,
      kill,
      canWarmTranslations: false,
      warmTranslations: async () => {},
    };
  };
  const warmProcesses = new WarmProcesses({
    ...{ paths, maxCount: 1, budgetBytes: 2 ** 40, onFailure: (error: unknown) => failures.push(error) },
    pressure: { isRising: () => false, isHigh: () => false } as never,
    templates: { sharedFiles: () => ({}), spec: () => ({}), image: () => ({}) } as never,
    vmm: { hasWarmProcesses: true, startWarm: warm },
    scheduler: new StartScheduler(1),
    ...{ connect: () => assert.fail("translations are not warmed here"), wakeMs: 1 },
    step: () => {},
  });
  warmProcesses.open();
  for (let claims = 0; claims < 2; claims++) await claim(warmProcesses); // there is demand from the second claim on
  await made;
  await waitFor("a process is ready", () => warmProcesses.state().ready > 0);
  return warmProcesses;
}

function claim(warmProcesses: WarmProcesses, signal?: AbortSignal): Promise<Vm | undefined> {
  return warmProcesses.claimProcess("cl-1", capsule, saved, signal);
}

test("a failed claim is reported, and leaves neither process nor folder", async () => {
  const warmProcesses = await ready(async () => {
    throw new Error("no disk");
  });
  assert.equal(await claim(warmProcesses), undefined);
  assert.deepEqual(failures.map(String), ["Error: no disk"]);
  await warmProcesses.close();
  assert.ok(killed >= 1);
  const work = join(data, "work");
  assert.deepEqual(existsSync(work) ? readdirSync(work) : [], []);
});

test("a process that a new capsule asked for serves one whose file was read, with its fields in another order", async () => {
  const vm = {} as Vm;
  const warmProcesses = await ready(async () => vm);
  const { name, hash } = capsule.image;
  const read = { ...capsule, image: { hash, name }, machine: decodeMachine(encodeMachine(machine), 2) };
  assert.notEqual(JSON.stringify(read.machine), JSON.stringify(machine));
  assert.equal(await warmProcesses.claimProcess("cl-1", read, { ...saved, revision: 7 }), vm);
  assert.equal((await readVm(join(data, "capsules/cl-1")))?.restores, 7, "for the next daemon");
  await warmProcesses.close();
});

test("an aborted claim is not reported as a failure, whatever its error", async () => {
  const signal = new AbortController();
  const warmProcesses = await ready(async () => {
    signal.abort();
    throw new Error("the process is gone");
  });
  assert.equal(await claim(warmProcesses, signal.signal), undefined);
  assert.deepEqual(failures, []);
  assert.ok(killed >= 1);
  await warmProcesses.close();
});
