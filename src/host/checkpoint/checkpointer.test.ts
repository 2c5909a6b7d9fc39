/** Saves of guests that do not freeze, and saves that fail. Real VMs are saved in test/conformance and test/faults. */
import assert from "node:assert/strict";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { CountedSlots } from "../../../test/fakes/counted-slots.ts";
import { FakeGuest, type HostFrame } from "../../../test/fakes/fake-guest.ts";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { connectAgent } from "../../agent/connection.ts";
import { FrameType } from "../../agent/frames.ts";
import { emptyRecord, Verb } from "../../agent/protocol.ts";
import { RecordWriter } from "../../agent/records.ts";
import type { MergeLayer } from "../../vmm/layer-merge.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { CapsuleFile } from "../disk/capsule-folder.ts";
import { openCheckpoint } from "../disk/checkpoint-folder.ts";
import { DiskSpace } from "../disk/disk-space.ts";
import { imageLayer } from "../disk/manifest.ts";
import { Paths } from "../disk/paths.ts";
import { LiveGuest } from "../guest.ts";
import { Checkpointer, type CheckpointerOptions, frozenPerOwner, lineOfCopies } from "./checkpointer.ts";
import { Quiesce } from "./quiesce.ts";
import { Verifier } from "./verifier.ts";

const waitMs = 60_000;
const id = "cl-x";
const share = () => ({ owner: "a team", isOverQuota: false, sharers: ["a team"] });
const turn = { owner: "a team", revision: 7, share };
const below = imageLayer("minimal", "0", "5e".repeat(32));
const verbOf = ({ type, payload }: HostFrame) => (type === FrameType.OPEN ? payload.readUInt16LE() : 0);

/** Counts its stops and resumes. */
class CountingVm extends FakeVm {
  stops = 0;
  resumes = 0;

  override async resume(): Promise<void> {
    this.resumes++;
    await super.resume();
  }

  override async stop(): Promise<void> {
    this.stops++;
    await super.stop();
  }
}

interface Setup {
  /** How the guest answers FREEZE. */
  freezes: boolean | "when told";
  wakes?: boolean;
  reserveBytes?: number;
  mergeLayer?: MergeLayer;
}

const noMerge = () => assert.fail("no layer is merged");

/** A running capsule. */
async function running(t: TestContext, { freezes, wakes = true, reserveBytes = 0, mergeLayer = noMerge }: Setup) {
  const data = mkdtempSync(join(tmpdir(), "checkpointer-"));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = new Paths(data);
  for (const folder of [paths.work, paths.capsule(id)]) mkdirSync(folder, { recursive: true });
  writeFileSync(join(paths.capsule(id), "disk.qcow2"), "");
  const verbs: number[] = [];
  const untold: (() => void)[] = [];
  const fake = await FakeGuest.listen({
    onFrame(frame, guest) {
      const verb = verbOf(frame);
      if (verb === 0) return;
      verbs.push(verb);
      if (verb === Verb.WAKE && !wakes) return;
      const answer = verb === Verb.FREEZE ? new RecordWriter().u8(freezes === false ? 0 : 1).finish() : emptyRecord;
      const tell = () => guest.frame(FrameType.RESULT, frame.stream, answer);
      if (verb === Verb.FREEZE && freezes === "when told") untold.push(tell);
      else tell();
    },
  });
  t.after(() => fake[Symbol.asyncDispose]());
  const vm = new CountingVm(fake.socketPath);
  const { machine } = vm.spec;
  const image = { name: "minimal", hash: "0" };
  const capsule: CapsuleFile = { parent: "bases/b", parentSha256: null, image, machine };
  const connect = (path: string, deadlineMs: number) => connectAgent(path, { deadlineMs, silenceMs: waitMs });
  const live = new LiveGuest(id, capsule, vm, await connect(fake.socketPath, waitMs), {
    connect,
    reconnectMs: waitMs,
  });
  t.after(() => live.close());
  const steps: string[] = [];
  const verifier = new Verifier(() => {}, paths.scratch("hashing"));
  const templates = {
    layer: () => below,
    image: () => ({ root: "root" }),
  } as unknown as CheckpointerOptions["templates"];
  const wakeMs = wakes ? waitMs : 100;
  const space = new DiskSpace({ folder: paths.data, reserveBytes });
  const [slots, copies] = [new CountedSlots(1), new CountedSlots(1)];
  const step = (name: string) => void steps.push(name);
  const refused: { why?: Error } = {};
  const vmms = {
    requireKept: async () => {
      if (refused.why !== undefined) throw refused.why;
    },
  };
  const checkpointer = new Checkpointer({
    mergeLayer,
    vmm: vmms,
    templates,
    paths,
    space,
    slots,
    copies,
    verifier,
    wakeMs,
    step,
  });
  return { slots, copies, paths, vm, live, checkpointer, fake, verbs, untold, steps, refused };
}

test("a pause is refused before the guest is touched when its QEMU cannot be kept", async (t) => {
  const { paths, vm, live, checkpointer, verbs, steps, refused } = await running(t, { freezes: "when told" });
  refused.why = new CapsuleError("no_space", "keeping a copy of QEMU needs 61 MiB");
  const saved = checkpointer.save(live, "pause", turn);
  await assert.rejects(saved, refused.why);
  assert.deepEqual([verbs, steps, vm.found], [[], [], "running"]);
  assert.equal(existsSync(join(paths.capsule(id), "checkpoint")), false);
});

test("a pause does not need the guest to freeze, and replaces a checkpoint of an earlier save", async (t) => {
  const { paths, vm, live, checkpointer, steps } = await running(t, { freezes: false });
  const checkpoint = join(paths.capsule(id), "checkpoint");
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, "stale"), "");
  await checkpointer.save(live, "pause", turn);
  assert.equal(vm.found, "stopped");
  assert.deepEqual(readdirSync(checkpoint).sort(), ["manifest.json", "memory.diff", "state"]);
  assert.equal(readFileSync(join(checkpoint, "memory.diff"), "utf8"), "pages");
  assert.deepEqual(steps, ["save.frozen", "save.stopped", "save.written", "save.published"]);
});

test("a disk with nothing but its reserve has room for a pause, and for no capture", async (t) => {
  const { live, checkpointer, vm } = await running(t, { freezes: true, reserveBytes: 2 ** 60 });
  await assert.rejects(checkpointer.save(live, "capture", turn), { code: "no_space", message: /for pauses$/ });
  assert.equal(vm.found, "running");
  await checkpointer.save(live, "pause", turn);
  assert.equal(vm.found, "stopped");
});

test("a save that waits for its turn does not stop the guest; when it is aborted, the guest is thawed", async (t) => {
  const { slots, paths, vm, live, checkpointer, fake, verbs } = await running(t, { freezes: true });
  const other = Promise.withResolvers<void>();
  const occupied = slots.run("another team", () => other.promise);
  const abort = new AbortController();
  const aborted = checkpointer.save(live, "pause", { ...turn, signal: abort.signal });
  await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
  await live.agent.probe(); // the FREEZE has been answered by now
  abort.abort(new Error("deleted"));
  await assert.rejects(aborted, /deleted/);
  await live.agent.probe();
  assert.deepEqual([verbs, vm.stops], [[Verb.FREEZE, Verb.PROBE, Verb.THAW, Verb.PROBE], 0]);
  assert.deepEqual(readdirSync(paths.work), []);
  const waiting = checkpointer.save(live, "pause", turn);
  await waitFor("FREEZE is sent again", () => verbs.length === 5);
  other.resolve();
  await Promise.all([occupied, waiting]);
  assert.deepEqual([verbs.at(-1), vm.stops], [Verb.FREEZE, 1]);
});

test("QEMU is asked once more when it may have stopped the VM in the wait for a slot", async (t) => {
  const { slots, vm, live, checkpointer, verbs } = await running(t, { freezes: true });
  const other = Promise.withResolvers<void>();
  const occupied = slots.run("another team", () => other.promise);
  const saving = checkpointer.save(live, "pause", turn);
  await slots.lastAsked(turn.owner);
  vm.found = "stopped";
  other.resolve();
  await assert.rejects(saving, /waits for room on the host's disk/);
  await occupied;
  await live.agent.probe();
  assert.deepEqual([vm.stops, vm.resumes], [0, 0]);
  assert.deepEqual(verbs, [Verb.FREEZE, Verb.THAW, Verb.PROBE]);
});

test("of the saves of an owner that wait for a slot, only so many have frozen their guests; another owner's has", async (t) => {
  const { slots, vm, live, checkpointer, verbs } = await running(t, { freezes: true });
  const other = Promise.withResolvers<void>();
  const occupied = slots.run("another team", () => other.promise);
  const abort = new AbortController();
  const unused = { connect: () => assert.fail("a new connection is made"), reconnectMs: waitMs };
  let count = 0;
  const save = (owner: string) => {
    const guest = new LiveGuest(`cl-${count++}`, live.capsule, vm, live.agent, unused);
    return checkpointer.save(guest, "pause", { ...turn, owner, signal: abort.signal });
  };
  const freezes = () => verbs.filter((verb) => verb === Verb.FREEZE).length;
  const saves = Array.from({ length: frozenPerOwner + 2 }, () => save("a team"));
  await waitFor("its guests are frozen", () => freezes() === frozenPerOwner);
  saves.push(save("a third team"));
  await waitFor("the other's is frozen", () => freezes() === frozenPerOwner + 1);
  const outcomes = Promise.allSettled(saves);
  abort.abort(new Error("deleted"));
  for (const { status } of await outcomes) assert.equal(status, "rejected");
  assert.equal(freezes(), frozenPerOwner + 1);
  other.resolve();
  await occupied;
});

for (const [purpose, ms] of [
  ["pause", 1_999],
  ["capture", 9_999],
] as const) {
  test(`${purpose}: no slot is held while the agent is waited for, up to ${ms + 1} ms`, async (t) => {
    const { slots, vm, live, checkpointer, fake, untold } = await running(t, { freezes: "when told" });
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const saving = checkpointer.save(live, purpose, turn);
    await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
    t.mock.timers.tick(ms);
    assert.equal(await slots.run("another team", async (hasWaited) => hasWaited), false);
    for (const tell of untold) tell();
    await saving;
    t.mock.timers.reset();
    assert.equal(vm.stops, 1);
  });
}

test("no slot is held while a guest whose capture has failed is set running again", async (t) => {
  const { slots, live, checkpointer, fake } = await running(t, { freezes: "when told", wakes: false });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const saving = checkpointer.save(live, "capture", turn);
  await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
  t.mock.timers.tick(10_000);
  await fake.heard((frame) => verbOf(frame) === Verb.WAKE);
  assert.equal(await slots.run("another team", async (hasWaited) => hasWaited), false);
  t.mock.timers.tick(100);
  await assert.rejects(saving, /could not be frozen/);
  t.mock.timers.reset();
});

for (const [purpose, freezes] of [
  ["pause", false],
  ["pause", true],
  ["capture", true],
] as const) {
  test(`the manifest of a ${purpose} says whether the guest was frozen: ${freezes}; and what the checkpoint belongs to`, async (t) => {
    const { paths, live, checkpointer } = await running(t, { freezes });
    const layer = join(paths.capsule(id), "disk.qcow2");
    writeFileSync(layer, "layer");
    await checkpointer.save(live, purpose, turn);
    const manifest = await openCheckpoint(join(paths.capsule(id), "checkpoint"));
    assert.deepEqual([manifest?.kind, manifest?.revision, manifest?.frozen], ["pause", turn.revision, freezes]);
    assert.deepEqual(manifest?.diskLayer, { bytes: 5, mtimeNs: statSync(layer, { bigint: true }).mtimeNs });
    assert.deepEqual([manifest?.agent, manifest?.layers], [{ protocol: live.agent.protocol }, [below]]);
  });
}

test("a capture of a guest that does not freeze fails without stopping its CPUs", async (t) => {
  const { paths, vm, live, checkpointer, verbs, steps } = await running(t, { freezes: false });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let isOver = false;
  const saving = assert.rejects(checkpointer.save(live, "capture", turn), /could not be frozen/);
  void saving.finally(() => {
    isOver = true;
  });
  await waitFor("the capture is given up", () => {
    t.mock.timers.tick(1_000);
    return isOver;
  });
  await saving;
  t.mock.timers.reset();
  await live.agent.probe(); // earlier commands have been received by now
  assert.deepEqual([vm.stops, vm.found], [0, "running"]);
  assert.deepEqual(verbs.slice(-3), [Verb.WAKE, Verb.THAW, Verb.PROBE]);
  assert.deepEqual(steps, []);
  assert.deepEqual(readdirSync(paths.work), []);
  assert.ok(!existsSync(join(paths.capsule(id), "checkpoint")));
});

test("a capture of a guest that answers nothing fails, and the guest is reported as lost", async (t) => {
  const { vm, live, checkpointer, fake } = await running(t, { freezes: "when told", wakes: false });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const saving = checkpointer.save(live, "capture", turn);
  await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
  t.mock.timers.tick(10_000);
  await fake.heard((frame) => verbOf(frame) === Verb.WAKE);
  t.mock.timers.tick(100);
  await assert.rejects(saving, /could not be frozen/);
  t.mock.timers.reset();
  assert.deepEqual([vm.stops, vm.found], [0, "running"]);
  assert.equal((await live.ended).kind, "lost");
});

test("a capture of a guest that freezes stops its CPUs once and publishes the checkpoint", async (t) => {
  const { paths, vm, live, checkpointer, verbs } = await running(t, { freezes: true });
  await checkpointer.save(live, "capture", turn);
  assert.deepEqual(verbs, [Verb.FREEZE]);
  assert.equal(vm.stops, 1);
  assert.ok(existsSync(join(paths.capsule(id), "checkpoint/manifest.json")));
});

test("a disk layer that cannot be synced fails the pause, and the guest is resumed", async (t) => {
  const { paths, vm, live, checkpointer, verbs } = await running(t, { freezes: true });
  rmSync(join(paths.capsule(id), "disk.qcow2"));
  await assert.rejects(checkpointer.save(live, "pause", turn), { code: "ENOENT" });
  assert.deepEqual([vm.stops, vm.found, verbs.at(-1)], [1, "running", Verb.THAW]);
  assert.deepEqual(readdirSync(paths.work), []);
  assert.ok(!existsSync(join(paths.capsule(id), "checkpoint")));
});

test("when a save fails before the guest has answered, no FREEZE follows the THAW", async (t) => {
  const { paths, vm, live, checkpointer, verbs } = await running(t, { freezes: false });
  rmSync(paths.work, { recursive: true });
  writeFileSync(paths.work, "no folder");
  await assert.rejects(checkpointer.save(live, "capture", turn), { code: "ENOTDIR" });
  assert.equal(vm.stops, 0);
  await live.agent.probe(); // earlier commands have been received by now
  assert.ok(verbs.lastIndexOf(Verb.FREEZE) < verbs.indexOf(Verb.THAW), verbs.join(" "));
});

const unfit = [
  { name: "a VM that waits for the host's disk", found: "stopped", says: /waits for room on the host's disk/ },
  { name: "a QEMU that does not answer", found: new Error("no answer"), says: /no answer/ },
] as const;
for (const purpose of ["pause", "capture"] as const) {
  for (const { name, found, says } of unfit) {
    test(`${purpose}: ${name} is neither stopped nor resumed, and its guest is thawed`, async (t) => {
      const { paths, vm, live, checkpointer, fake, verbs, untold } = await running(t, { freezes: "when told" });
      vm.found = found;
      t.mock.timers.enable({ apis: ["setTimeout"] });
      const saving = checkpointer.save(live, purpose, turn);
      await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
      t.mock.timers.tick(10_000); // the guest does not answer within the deadline
      await assert.rejects(saving, says);
      t.mock.timers.reset();
      assert.deepEqual([vm.stops, vm.resumes, vm.found], [0, 0, found]);
      await live.agent.probe(); // earlier commands have been received by now
      for (const tell of untold) tell();
      await live.agent.probe();
      assert.deepEqual(verbs, [Verb.FREEZE, Verb.THAW, Verb.PROBE, Verb.PROBE]);
      assert.deepEqual(readdirSync(paths.work), []);
      vm.endWith({ kind: "powered_off" });
      assert.equal((await live.ended).kind, "powered_off"); // it is monitored again
    });
  }
}

const thaws = (fake: FakeGuest) => fake.frames.filter((frame) => verbOf(frame) === Verb.THAW).length;

for (const purpose of ["pause", "capture"] as const) {
  test(`${purpose}: a guest that reconnects during a save that fails is thawed on the new connection`, async (t) => {
    const { vm, live, checkpointer, fake } = await running(t, { freezes: "when told" });
    await live.thaw();
    const state = Promise.withResolvers<"stopped">();
    vm.state = () => state.promise;
    const saving = checkpointer.save(live, purpose, turn);
    await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
    fake.asleep = true;
    fake.connection!.destroy();
    await fake.heard(() => thaws(fake) === 2);
    state.resolve("stopped");
    await assert.rejects(saving, /waits for room/);
  });
}

test("a guest that reconnects after it was frozen may run again, and is not captured", async (t) => {
  const { vm, live, fake } = await running(t, { freezes: true });
  await live.thaw();
  const quiesce = new Quiesce(live, "capture");
  await live.agent.probe(); // the FREEZE has been answered by now
  fake.asleep = true;
  fake.connection!.destroy();
  await fake.heard(() => thaws(fake) === 2);
  await quiesce.answered();
  await assert.rejects(quiesce.done(false), /could not be frozen/);
  assert.equal(vm.stops, 0);
});

test("QEMU's monitor is not queried when the guest has answered FREEZE", async (t) => {
  const { vm, live, checkpointer } = await running(t, { freezes: true });
  vm.state = () => Promise.reject(new Error("queried"));
  await checkpointer.save(live, "pause", turn);
  assert.equal(vm.stops, 1);
});

test("one team with many copies leaves a slot to the others", async () => {
  const line = lineOfCopies();
  const started: string[] = [];
  const over = Promise.withResolvers<void>();
  const copy = (owner: string) =>
    line.run(owner, () => {
      started.push(owner);
      return over.promise;
    });
  const copies = ["a", "a", "a", "b"].map(copy);
  assert.deepEqual(started, ["a", "b"]);
  over.resolve();
  await Promise.all(copies);
  assert.equal(started.length, 4);
});

test("a merge waits for its turn in a line of its own, where a signal ends the waiting, and no save waits for it", async (t) => {
  const { paths, live, checkpointer, copies } = await running(t, { freezes: true });
  const others = Promise.withResolvers<void>();
  t.after(() => others.resolve());
  void copies.run("another team", () => others.promise);
  await checkpointer.save(live, "capture", turn);
  const destroyed = new AbortController();
  const captured = checkpointer.capture(live, "t1", { ...turn, signal: destroyed.signal });
  await copies.lastAsked(turn.owner);
  assert.deepEqual(readdirSync(paths.work), []);
  destroyed.abort(new Error("destroyed"));
  await assert.rejects(captured, /^Error: destroyed/);
  await checkpointer.unsave(live);
  await checkpointer.save(live, "pause", turn);
});

test("a merge that is under way ends when its signal fires, and gives its slot back", async (t) => {
  const merging = Promise.withResolvers<AbortSignal | undefined>();
  const mergeLayer: MergeLayer = (_merge, signal) => {
    merging.resolve(signal);
    return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
  };
  const { paths, live, checkpointer, copies } = await running(t, { freezes: true, mergeLayer });
  const parent = join(paths.data, "bases/b");
  mkdirSync(parent, { recursive: true });
  writeFileSync(join(parent, "memory"), "");
  await checkpointer.save(live, "capture", turn);
  const destroyed = new AbortController();
  const captured = checkpointer.capture(live, "t1", { ...turn, signal: destroyed.signal });
  assert.ok((await within("the layer is merged", merging.promise)) !== undefined, "a merge that no signal ends");
  destroyed.abort(new Error("destroyed"));
  await assert.rejects(within("the capture ends", captured), /^Error: destroyed/);
  assert.deepEqual([readdirSync(paths.work), existsSync(paths.template("t1"))], [[], false]);
  await within(
    "the slot is free",
    copies.run("another team", async () => {}),
  );
});

test("a save whose devices have changed is repeated, and published once they have not", async (t) => {
  const { paths, vm, live, checkpointer, steps } = await running(t, { freezes: true });
  vm.inconsistent = 2;
  await checkpointer.save(live, "pause", turn);
  const attempt = ["save.stopped", "save.written"];
  assert.deepEqual(steps, ["save.frozen", ...attempt, ...attempt, ...attempt, "save.published"]);
  assert.ok(existsSync(join(paths.capsule(id), "checkpoint/manifest.json")));
});

test("a save that was taken back leaves no checkpoint, and the next one succeeds", async (t) => {
  const { paths, live, checkpointer } = await running(t, { freezes: true });
  const checkpoint = join(paths.capsule(id), "checkpoint");
  await checkpointer.save(live, "pause", turn);
  await checkpointer.unsave(live);
  assert.ok(!existsSync(checkpoint));
  await checkpointer.save(live, "pause", turn);
  assert.ok(existsSync(join(checkpoint, "manifest.json")));
});

test("a guest whose VM cannot be resumed is reported as lost", async (t) => {
  const { paths, vm, live, checkpointer } = await running(t, { freezes: true });
  await checkpointer.save(live, "pause", turn);
  vm.resume = () => Promise.reject(new Error("no answer"));
  await assert.rejects(checkpointer.unsave(live), /no answer/);
  assert.ok(!existsSync(join(paths.capsule(id), "checkpoint")));
  assert.equal(vm.found, "stopped");
  assert.equal((await live.ended).kind, "lost");
});
