/** What is told of a claim that fails; the processes are promises. What they do on a real host: test/faults/warm-processes.test.ts. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import type { SavedVm, Vm, VmSpec, WarmProcess } from "../../vmm/vmm.ts";
import { StartScheduler } from "../capacity/start-scheduler.ts";
import type { CapsuleFile } from "../disk/capsule-folder.ts";
import { Paths } from "../disk/paths.ts";
import { WarmProcesses } from "./warm-processes.ts";

const machine = { vcpus: 1, memoryMb: 512 } as CapsuleFile["machine"];
const capsule: CapsuleFile = {
  ...{ format: 1, origin: "bases/minimal", originSha256: null, machine },
  image: { name: "minimal", hash: "1" },
};
const saved: SavedVm = { memory: null, state: "state" };
const process = { pid: 1, startTime: 1 } as unknown as WarmProcess["process"];

const data = mkdtempSync(join(tmpdir(), "capsule-blanks-"));
after(() => rmSync(data, { recursive: true, force: true }));

let failures: unknown[];
let killed: number;
beforeEach(() => {
  failures = [];
  killed = 0;
});

/** One that waits already, and whose claim comes to what `outcome` says. */
async function ready(outcome: () => Promise<Vm>): Promise<WarmProcesses> {
  const paths = new Paths(data);
  mkdirSync(paths.capsule("cl-1"), { recursive: true });
  const { promise: made, resolve } = Promise.withResolvers<void>();
  const warm = async (spec: VmSpec): Promise<WarmProcess> => {
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
    sources: { sharedFiles: () => ({}), spec: () => ({}), image: () => ({}) } as never,
    vmm: { hasWarmProcesses: true, startWarm: warm },
    slots: new StartScheduler(1),
    ...{ connect: () => assert.fail("nothing rehearses here"), wakeMs: 1 },
    step: () => {},
  });
  warmProcesses.open();
  for (let wanted = 0; wanted < 2; wanted++) await claim(warmProcesses); // from the second on some wait
  await made;
  while (warmProcesses.state().ready === 0) await new Promise(setImmediate);
  return warmProcesses;
}

function claim(warmProcesses: WarmProcesses, signal?: AbortSignal): Promise<Vm | undefined> {
  return warmProcesses.claim("cl-1", capsule, saved, { onProcess: () => {}, signal });
}

test("a claim that fails is told of, and leaves neither process nor folder", async () => {
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

test("a claim that nobody wants any longer is no failure, whatever it broke off with", async () => {
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
