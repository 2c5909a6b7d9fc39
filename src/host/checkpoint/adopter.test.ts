/** A daemon adopts capsules whose pause an earlier one has not recorded. Real VMs: test/faults. */
import assert from "node:assert/strict";
import { appendFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import { pausedFolder } from "../../../test/fakes/paused-folder.ts";
import type { Agent } from "../../agent/agent.ts";
import type { Vmm } from "../../vmm/vmm.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
import { StartScheduler } from "../capacity/start-scheduler.ts";
import { readVm, type VmFile, writeVm } from "../disk/capsule-folder.ts";
import { diskLayerOf, openCheckpoint } from "../disk/checkpoint-folder.ts";
import { DiskSpace } from "../disk/disk-space.ts";
import type { Saved } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import type { Connect } from "../guest.ts";
import type { Adopted } from "../host.ts";
import { Launcher } from "../launch/launcher.ts";
import { Adopter } from "./adopter.ts";
import { Restorer } from "./restorer.ts";

const id = "cl-1";
const revision = 12;
const agent = { awake: true, closed: new Promise(() => {}), close() {} } as unknown as Agent;
const answering: Connect = async () => agent;
const silent: Connect = async () => {
  throw new Error("no answer from the agent");
};
const written = "it was saved, and more was written";

interface Left {
  folder: string;
  layer: string;
  paths: Paths;
  vm: FakeVm;
  restorer: Restorer;
  /** Which VMs were ended, by their nonce. */
  reaped: string[];
  /** Ends the waiting for the agent. */
  abort: AbortController;
  adopt(saving: number | null): Promise<Adopted>;
}

/** A saved VM that runs on when it is resumed, and writes to its disk layer; `connect` reaches its agent. */
async function left(t: TestContext, connect: Connect, about: Partial<Saved> = {}): Promise<Left> {
  const made = { id, content: "as saved", revision };
  const { paths, folder, layer } = await pausedFolder(t, made, about);

  const vm = new FakeVm("");
  vm.found = "stopped";
  vm.spec.files.dir = folder;
  await writeVm(folder, { nonce: "0", process: vm.process, protocol: 1, restores: 7 });
  const reaped: string[] = [];
  const reap = async (nonce: string) => void reaped.push(nonce);
  const vmm = { adopt: async () => vm, find: async () => [], reap } as unknown as Vmm;
  const options = {
    paths,
    vmm,
    connect,
    bootMs: 60_000,
    wakeMs: 60_000,
    silenceMs: 60_000,
    step: () => {},
    scheduler: new StartScheduler(1),
  };
  const launcher = new Launcher({ ...options, templates: { spec: () => vm.spec } as never });
  const restorer = new Restorer({
    ...{
      paths,
      vmm,
      launcher,
      space: new DiskSpace({ folder: paths.data, reserveBytes: 0 }),
      copies: new FairSlots(1),
    },
    templates: { requireMachine: async () => {}, requireParent: async () => {} },
    verifier: { requireSound() {}, verifyOnce() {} },
  });
  const adopter = new Adopter({ paths, vmm, launcher, restorer, onReached: (guest) => t.after(() => guest.close()) });
  const abort = new AbortController();
  const adopt = async (saving: number | null) => {
    const found = await adopter.adopt(id, saving, abort.signal);
    return found.kind === "alive" ? found.settled : found;
  };
  return { folder, layer, paths, vm, restorer, reaped, abort, adopt };
}

/** As a guest does when its CPUs run. */
function writeOnResume({ vm, layer }: Left): void {
  vm.resume = async () => {
    vm.found = "running";
    appendFileSync(layer, written);
  };
}

async function layerIsTheCheckpoints({ folder, layer }: Left): Promise<boolean> {
  const { mtimeNs } = (await openCheckpoint(join(folder, "checkpoint")))!.diskLayer!;
  return mtimeNs === diskLayerOf(layer).mtimeNs;
}

test("a saved VM whose agent answers runs on; before its CPUs run, its journal names the checkpoint", async (t) => {
  const found = await left(t, answering);
  let journal: VmFile | undefined;
  found.vm.resume = async () => {
    journal = await readVm(found.folder);
  };
  const adopted = await found.adopt(revision);
  assert.equal(adopted.kind, "running");
  assert.deepEqual(journal, { nonce: "0", process: found.vm.process, protocol: 1, restores: revision });
});

test("one whose agent is not waited for any longer runs on, and its journal and checkpoint stay", async (t) => {
  const begun = Promise.withResolvers<void>();
  const found = await left(t, (_socket, _deadlineMs, signal) => {
    begun.resolve();
    return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))));
  });
  found.vm.kill = () => assert.fail("the VM is ended");
  const adopted = found.adopt(revision);
  await begun.promise;
  found.abort.abort(new Error("the server stops"));
  await assert.rejects(adopted, /the server stops/);
  assert.deepEqual([found.vm.found, found.vm.isDetached, found.reaped], ["running", true, []]);
  assert.ok(existsSync(join(found.folder, "vm.json")) && existsSync(join(found.folder, "checkpoint")));
});

test("one that does not answer is ended, and what its kernel wrote keeps the checkpoint from nothing", async (t) => {
  const found = await left(t, silent);
  writeOnResume(found);
  const { savedAt, ...adopted } = (await found.adopt(revision)) as { savedAt: number };
  assert.deepEqual(adopted, { kind: "checkpoint", revision, reason: "no answer from the agent" });
  assert.ok(savedAt > 0);
  assert.deepEqual(found.reaped, ["0"]);
  assert.ok(await layerIsTheCheckpoints(found));
  assert.ok(!existsSync(join(found.folder, "vm.json")));
});

for (const restores of [revision, undefined]) {
  test(`the same of a VM that died after a daemon${restores ? "" : " of the release before"} had let it run on`, async (t) => {
    const found = await left(t, answering);
    await writeVm(found.folder, { nonce: "0", process: null, ...(restores === undefined ? {} : { restores }) });
    appendFileSync(found.layer, written);
    const adopted = await found.adopt(revision);
    assert.deepEqual([adopted.kind, await layerIsTheCheckpoints(found)], ["checkpoint", true]);
  });
}

for (const kind of ["powered_off", "reset"] as const) {
  test(`a guest that is ${kind} while its agent is waited for has ended by itself, unless it was being saved`, async (t) => {
    for (const saving of [null, revision]) {
      const found = await left(t, (_socket, _deadlineMs, signal) => {
        found.vm.endWith({ kind });
        return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))));
      });
      const adopted = await found.adopt(saving);
      assert.equal(adopted.kind, saving === null ? kind : "checkpoint");
      assert.ok(!existsSync(join(found.folder, "vm.json")));
    }
  });
}

test("a VM whose capsule.json is missing, damaged or of a later release is ended, and the reason says so", async (t) => {
  const damages = [
    ["", /^capsule\.json of cl-1 cannot be used: /],
    [
      '{"format": 3}',
      /^capsule\.json of cl-1 cannot be opened: it has format 3, and this release opens formats 1 to 2$/,
    ],
    [undefined, undefined],
  ] as const;
  for (const [content, expected] of damages) {
    const found = await left(t, answering);
    const path = join(found.folder, "capsule.json");
    if (content === undefined) rmSync(path);
    else writeFileSync(path, content);
    const adopted = await found.adopt(null);
    assert.equal(adopted.kind, "checkpoint", "of another revision: recovery takes the capsule to `error`");
    const reason = "reason" in adopted ? adopted.reason : undefined;
    if (expected === undefined) assert.equal(reason, undefined);
    else assert.match(reason ?? "", expected);
    assert.deepEqual(found.reaped, ["0"]);
    assert.ok(!existsSync(join(found.folder, "vm.json")));
  }
});

test("where that cannot be recorded the journal stays, for the next resume", async (t) => {
  const found = await left(t, silent);
  writeOnResume(found);
  rmSync(found.paths.work, { recursive: true });
  assert.equal((await found.adopt(revision)).kind, "checkpoint");
  assert.equal(await layerIsTheCheckpoints(found), false);
  mkdirSync(found.paths.work);
  await found.restorer.reap(id);
  assert.ok(await layerIsTheCheckpoints(found));
});

test("what user processes that were not frozen have written makes the memory too old", async (t) => {
  const silentOne = await left(t, silent, { frozen: false });
  writeOnResume(silentOne);
  assert.deepEqual(await silentOne.adopt(revision), { kind: "nothing", reason: "no answer from the agent" });
  const dead = await left(t, answering, { frozen: false });
  await writeVm(dead.folder, { nonce: "0", process: null, restores: revision });
  appendFileSync(dead.layer, written);
  const reason = "its disk was written to after its memory was saved";
  assert.deepEqual(await dead.adopt(revision), { kind: "nothing", reason });
  const unchanged = await left(t, silent, { frozen: false });
  assert.equal((await unchanged.adopt(revision)).kind, "checkpoint", "nothing was written");
});

test("so does what was written while a VM ran that does not continue the checkpoint", async (t) => {
  const found = await left(t, answering);
  await writeVm(found.folder, { nonce: "0", process: null, restores: 7 });
  appendFileSync(found.layer, written);
  assert.equal((await found.adopt(revision)).kind, "nothing");
  const withoutJournal = await left(t, answering);
  rmSync(join(withoutJournal.folder, "vm.json"));
  assert.equal((await withoutJournal.adopt(revision)).kind, "checkpoint");
  appendFileSync(withoutJournal.layer, written);
  assert.equal((await withoutJournal.adopt(revision)).kind, "nothing");
});

test("the checkpoint of another revision is left as it is, and its VM's journal too", async (t) => {
  for (const saving of [null, revision + 1]) {
    const found = await left(t, silent);
    await writeVm(found.folder, { nonce: "0", process: found.vm.process, restores: revision }); // resumed from it
    writeOnResume(found);
    const manifest = join(found.folder, "checkpoint/manifest.json");
    const before = readFileSync(manifest, "utf8");
    const adopted = await found.adopt(saving);
    assert.deepEqual([adopted.kind, readFileSync(manifest, "utf8")], ["checkpoint", before]);
    const answers = await left(t, answering);
    assert.equal((await answers.adopt(saving)).kind, "running");
    assert.equal((await readVm(answers.folder))?.restores, 7);
  }
});
