/** Saves of guests that do not freeze, and what comes of saves that fail. Real ones are saved in test/conformance and test/faults. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { FakeGuest, type HostFrame } from "../../../test/fakes/fake-guest.ts";
import { FakeVm } from "../../../test/fakes/fake-vm.ts";
import { connectAgent } from "../../agent/connection.ts";
import { FrameType } from "../../agent/frames.ts";
import { emptyRecord, Verb } from "../../agent/protocol.ts";
import { RecordWriter } from "../../agent/records.ts";
import type { AroundSave, SaveResult } from "../../vmm/vmm.ts";
import type { CapsuleFile } from "../disk/capsule-folder.ts";
import { Paths } from "../disk/paths.ts";
import { LiveGuest } from "../guest.ts";
import { Checkpointer, type CheckpointerOptions } from "./checkpointer.ts";
import { Verifier } from "./verifier.ts";

const patienceMs = 10_000;
const id = "cl-x";
const verbOf = ({ type, payload }: HostFrame) => (type === FrameType.OPEN ? payload.readUInt16LE() : 0);

/** Writes what it is to write, and remembers whether it was ever stopped. */
class WritingVm extends FakeVm {
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

  override save(to: { state: string; memory: string }, around: AroundSave = {}): Promise<SaveResult> {
    const seal = async () => {
      writeFileSync(to.state, "devices");
      writeFileSync(to.memory, "pages");
      await around.seal?.({ bytes: 5, whole: Promise.resolve() });
    };
    return super.save(to, { ...around, seal });
  }
}

/** A capsule whose guest freezes or not, ready to be saved. */
async function running(t: TestContext, { freezes, wakes = true }: { freezes: boolean | "when told"; wakes?: boolean }) {
  const data = mkdtempSync(join(tmpdir(), "saver-"));
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
  const vm = new WritingVm(fake.socketPath);
  const { machine } = vm.spec;
  const image = { name: "minimal", hash: "0" };
  const capsule: CapsuleFile = { format: 1, origin: "bases/b", originSha256: null, image, machine };
  const connect = (path: string, deadlineMs: number) => connectAgent(path, { deadlineMs, silenceMs: patienceMs });
  const live = new LiveGuest(id, capsule, vm, await connect(fake.socketPath, patienceMs), {
    connect,
    reconnectMs: patienceMs,
  });
  t.after(() => live.close());
  const steps: string[] = [];
  const verifier = new Verifier(() => {}, paths.scratch("hashing"));
  const unused = {} as Pick<CheckpointerOptions, "sources" | "flatten" | "mergeLayer">;
  const wakeMs = wakes ? patienceMs : 100;
  const saver = new Checkpointer({ ...unused, paths, verifier, wakeMs, step: (name) => void steps.push(name) });
  return { paths, vm, live, saver, fake, verbs, untold, steps };
}

test("a guest that does not freeze is paused all the same, and what an earlier save left gives way", async (t) => {
  const { paths, vm, live, saver, steps } = await running(t, { freezes: false });
  const checkpoint = join(paths.capsule(id), "checkpoint");
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, "stale"), "");
  await saver.save(live, "pause");
  assert.equal(vm.found, "stopped");
  assert.deepEqual(readdirSync(checkpoint).sort(), ["manifest.json", "memory.diff", "state"]);
  assert.equal(readFileSync(join(checkpoint, "memory.diff"), "utf8"), "pages");
  assert.deepEqual(steps, ["save.frozen", "save.stopped", "save.written", "save.published"]);
});

test("it is not captured, nor ever stopped, and runs on", async (t) => {
  const { paths, vm, live, saver, verbs, steps } = await running(t, { freezes: false });
  await assert.rejects(saver.save(live, "capture"), /could not be frozen/);
  await live.agent.probe(); // whatever was asked before is heard by now
  assert.deepEqual([vm.stops, vm.found], [0, "running"]);
  assert.deepEqual(verbs.slice(-3), [Verb.WAKE, Verb.THAW, Verb.PROBE]);
  assert.deepEqual(steps, []);
  assert.deepEqual(readdirSync(paths.work), []);
  assert.ok(!existsSync(join(paths.capsule(id), "checkpoint")));
});

test("nor is a mute one, which is found to be lost", async (t) => {
  const { vm, live, saver, fake } = await running(t, { freezes: "when told", wakes: false });
  await assert.rejects(saver.save(live, "capture"), /could not be frozen/);
  assert.deepEqual([vm.stops, vm.found], [0, "running"]);
  assert.equal((await live.ended).kind, "lost");
  assert.ok(fake.frames.some((frame) => verbOf(frame) === Verb.WAKE));
});

test("one that does is", async (t) => {
  const { paths, vm, live, saver, verbs } = await running(t, { freezes: true });
  await saver.save(live, "capture");
  assert.deepEqual(verbs, [Verb.FREEZE]);
  assert.equal(vm.stops, 1);
  assert.ok(existsSync(join(paths.capsule(id), "checkpoint/manifest.json")));
});

test("a disk layer that cannot be made durable fails the pause, and the guest runs on", async (t) => {
  const { paths, vm, live, saver, verbs } = await running(t, { freezes: true });
  rmSync(join(paths.capsule(id), "disk.qcow2"));
  await assert.rejects(saver.save(live, "pause"), { code: "ENOENT" });
  assert.deepEqual([vm.stops, vm.found, verbs.at(-1)], [1, "running", Verb.THAW]);
  assert.deepEqual(readdirSync(paths.work), []);
  assert.ok(!existsSync(join(paths.capsule(id), "checkpoint")));
});

test("when a save fails before its guest has answered, nobody freezes the guest after it was thawed", async (t) => {
  const { paths, vm, live, saver, verbs } = await running(t, { freezes: false });
  rmSync(paths.work, { recursive: true });
  writeFileSync(paths.work, "no folder");
  await assert.rejects(saver.save(live, "capture"), { code: "ENOTDIR" });
  assert.equal(vm.stops, 0);
  await live.agent.probe(); // whatever was asked before is heard by now
  assert.ok(verbs.lastIndexOf(Verb.FREEZE) < verbs.indexOf(Verb.THAW), verbs.join(" "));
});

const unfit = [
  { name: "a VM that waits for the host's disk", found: "stopped", says: /waits for room on the host's disk/ },
  { name: "a QEMU that does not answer", found: new Error("no answer"), says: /no answer/ },
] as const;
for (const purpose of ["pause", "capture"] as const) {
  for (const { name, found, says } of unfit) {
    test(`${purpose}: ${name} is neither stopped nor continued, and the guest behind it is let go`, async (t) => {
      const { paths, vm, live, saver, verbs, untold } = await running(t, { freezes: "when told" });
      vm.found = found;
      await assert.rejects(saver.save(live, purpose), says);
      assert.deepEqual([vm.stops, vm.resumes, vm.found], [0, 0, found]);
      await live.agent.probe(); // whatever was asked before is heard by now
      for (const tell of untold) tell();
      await live.agent.probe();
      assert.deepEqual(verbs, [Verb.FREEZE, Verb.THAW, Verb.PROBE, Verb.PROBE]);
      assert.deepEqual(readdirSync(paths.work), []);
      vm.endWith({ kind: "powered_off" });
      assert.equal((await live.ended).kind, "powered_off"); // it is listened to again
    });
  }
}

const thaws = (fake: FakeGuest) => fake.frames.filter((frame) => verbOf(frame) === Verb.THAW).length;

for (const purpose of ["pause", "capture"] as const) {
  test(`${purpose}: a guest whose connection is made anew while it is found unfit is let go by the new one`, async (t) => {
    const { vm, live, saver, fake } = await running(t, { freezes: "when told" });
    await live.thaw(); // as any capsule was before it ran
    const looking = Promise.withResolvers<"stopped">();
    vm.state = () => looking.promise;
    const saving = saver.save(live, purpose);
    await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
    fake.asleep = true;
    fake.connection!.destroy();
    await fake.heard(() => thaws(fake) === 2);
    looking.resolve("stopped");
    await assert.rejects(saving, /waits for room/);
  });
}

test("one whose connection was made anew after it was frozen may run again, and is not captured", async (t) => {
  const { vm, live, saver, fake, untold } = await running(t, { freezes: "when told" });
  await live.thaw();
  const looking = Promise.withResolvers<"running">();
  const asked = Promise.withResolvers<void>();
  vm.state = () => {
    asked.resolve();
    return looking.promise;
  };
  const saving = saver.save(live, "capture");
  await asked.promise; // since the answer to the FREEZE takes long
  untold[0]!();
  await live.agent.probe(); // the FREEZE has been answered by now
  fake.asleep = true;
  fake.connection!.destroy();
  await fake.heard(() => thaws(fake) === 2);
  looking.resolve("running");
  await assert.rejects(saving, /could not be frozen/);
  assert.equal(vm.stops, 0);
});

test("a guest that has frozen is proof enough of a QEMU that serves it", async (t) => {
  const { vm, live, saver, untold, fake } = await running(t, { freezes: "when told" });
  vm.state = () => Promise.reject(new Error("nobody asks"));
  const saving = saver.save(live, "pause");
  await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
  untold[0]!();
  await saving;
  assert.equal(vm.stops, 1);
});

test("what a save has made is in the way of no later one, and is looked for only where there may be something", async (t) => {
  const { paths, vm, live, saver } = await running(t, { freezes: true });
  const checkpoint = join(paths.capsule(id), "checkpoint");
  await saver.save(live, "pause");
  assert.equal(live.mayHaveCheckpoint, true);
  await saver.unsave(live);
  assert.deepEqual([live.mayHaveCheckpoint, existsSync(checkpoint)], [false, false]);
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, "nobody's"), "");
  await assert.rejects(saver.save(live, "pause"), { code: "ENOTEMPTY" });
  assert.deepEqual([vm.found, existsSync(checkpoint)], ["running", false], "a surprise fails one save, and no more");
  await saver.save(live, "pause");
  assert.ok(existsSync(join(checkpoint, "manifest.json")));
});

test("a guest that is not set running again is lost, and does not stand still for good", async (t) => {
  const { paths, vm, live, saver } = await running(t, { freezes: true });
  await saver.save(live, "pause");
  rmSync(paths.capsule(id), { recursive: true });
  await assert.rejects(saver.unsave(live), { code: "ENOENT" });
  assert.equal(vm.found, "stopped");
  assert.equal((await live.ended).kind, "lost");
});
