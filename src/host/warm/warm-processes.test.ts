/** What is told of a claim that fails; the processes are promises. What they do on a real host: test/faults/blanks.test.ts. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import type { Blank, SavedVm, Vm, VmSpec } from "../../vmm/vmm.ts";
import { Slots } from "../capacity/start-scheduler.ts";
import type { CapsuleFile } from "../disk/capsule-folder.ts";
import { Paths } from "../disk/paths.ts";
import { Blanks } from "./warm-processes.ts";

const machine = { vcpus: 1, memoryMb: 512 } as CapsuleFile["machine"];
const capsule: CapsuleFile = {
  ...{ format: 1, origin: "bases/minimal", originSha256: null, machine },
  image: { name: "minimal", hash: "1" },
};
const saved: SavedVm = { memory: null, state: "state" };
const process = { pid: 1, startTime: 1 } as unknown as Blank["process"];

const data = mkdtempSync(join(tmpdir(), "capsule-blanks-"));
after(() => rmSync(data, { recursive: true, force: true }));

let failures: unknown[];
let killed: number;
beforeEach(() => {
  failures = [];
  killed = 0;
});

/** One that waits already, and whose claim comes to what `outcome` says. */
async function ready(outcome: () => Promise<Vm>): Promise<Blanks> {
  const paths = new Paths(data);
  mkdirSync(paths.capsule("cl-1"), { recursive: true });
  const { promise: made, resolve } = Promise.withResolvers<void>();
  const blank = async (spec: VmSpec): Promise<Blank> => {
    queueMicrotask(resolve);
    const kill = async () => void killed++;
    return {
      spec,
      process,
      ended: new Promise(() => {}),
      claim: outcome,
      kill,
      canRehearse: false,
      rehearse: async () => {},
    };
  };
  const blanks = new Blanks({
    ...{ paths, most: 1, budgetBytes: 2 ** 40, onFailure: (error: unknown) => failures.push(error) },
    pressure: { isRising: () => false, isHigh: () => false } as never,
    sources: { below: () => ({}), spec: () => ({}), image: () => ({}) } as never,
    vmm: { hasBlanks: true, blank },
    slots: new Slots(1),
    ...{ connect: () => assert.fail("nothing rehearses here"), wakeMs: 1 },
    step: () => {},
  });
  blanks.open();
  for (let wanted = 0; wanted < 2; wanted++) await claim(blanks); // from the second on some wait
  await made;
  while (blanks.state().ready === 0) await new Promise(setImmediate);
  return blanks;
}

function claim(blanks: Blanks, unwanted?: AbortSignal): Promise<Vm | undefined> {
  return blanks.claim("cl-1", capsule, saved, { onProcess: () => {}, unwanted });
}

test("a claim that fails is told of, and leaves neither process nor folder", async () => {
  const blanks = await ready(async () => {
    throw new Error("no disk");
  });
  assert.equal(await claim(blanks), undefined);
  assert.deepEqual(failures.map(String), ["Error: no disk"]);
  await blanks.close();
  assert.ok(killed >= 1);
  const work = join(data, "work");
  assert.deepEqual(existsSync(work) ? readdirSync(work) : [], []);
});

test("a claim that nobody wants any longer is no failure, whatever it broke off with", async () => {
  const unwanted = new AbortController();
  const blanks = await ready(async () => {
    unwanted.abort();
    throw new Error("the process is gone");
  });
  assert.equal(await claim(blanks, unwanted.signal), undefined);
  assert.deepEqual(failures, []);
  assert.ok(killed >= 1);
  await blanks.close();
});
