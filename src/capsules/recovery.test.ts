/** Crashes at one certain step. model.test.ts tries random ones. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { openDatabase } from "../db/database.ts";
import type { Log } from "../log.ts";

async function runningCapsule(service: FakeService): Promise<string> {
  const { capsules, team } = service;
  const { id } = await capsules.create(team, { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 });
  await service.settled();
  return id;
}

for (const action of ["pause", "capture"] as const) {
  test(`the checkpoint that a capsule was resumed from is not taken for that of a ${action} that has not begun`, async () => {
    const host = new FakeHost();
    const database = openDatabase(":memory:");
    const before = fakeService({ host, database });
    const { capsules, templates, team } = before;
    const id = await runningCapsule(before);
    await capsules.pause(team, id);
    const thawed = Promise.withResolvers<void>();
    host.moment = async () => {
      if (host.checkpoints.get(id)?.isStale !== true) return;
      thawed.resolve();
      await new Promise<never>(() => {}); // the machine loses its power here
    };
    void capsules.resume(team, id);
    await thawed.promise;
    if (action === "pause") void capsules.pause(team, id);
    else void templates.capture(team, { capsuleId: id, name: "t", overwrite: false });
    const left = before.store.get(id);
    assert.deepEqual([left?.status, left?.intent, host.checkpoints.has(id)], ["running", action, true]);

    host.guests.clear();
    host.moment = () => Promise.resolve();
    const after = fakeService({ host, database });
    await after.recover();
    assert.equal(after.store.get(id)?.status, "error");
    await assert.rejects(after.capsules.resume(after.team, id), { code: "invalid_state" });
    database.close();
  });
}

test("a pause whose checkpoint is complete is completed when daemon and VM have ended", async () => {
  const host = new FakeHost();
  const database = openDatabase(":memory:");
  const before = fakeService({ host, database });
  const id = await runningCapsule(before);
  const saved = Promise.withResolvers<void>();
  const { save } = host;
  host.save = async (...args) => {
    await save.apply(host, args);
    saved.resolve();
    await new Promise<never>(() => {});
  };
  void before.capsules.pause(before.team, id);
  await saved.promise;

  host.guests.clear();
  const after = fakeService({ host, database });
  await after.recover();
  assert.equal(after.store.get(id)?.status, "paused");
  assert.equal((await after.capsules.resume(after.team, id)).status, "running");
  database.close();
});

test("the host is told the revision of a row with an intent to save, whose checkpoint it may settle", async () => {
  for (const intent of ["pause", "capture", null] as const) {
    const host = new FakeHost();
    const database = openDatabase(":memory:");
    const before = fakeService({ host, database });
    const id = await runningCapsule(before);
    const row = before.store.get(id)!;
    const expected = intent === null ? null : before.store.setIntent(row, intent).revision;
    const told: unknown[] = [];
    host.adopt = async (...args: unknown[]) => {
      told.push(args.slice(0, 2));
      return { kind: "nothing" };
    };
    await fakeService({ host, database }).recover();
    assert.deepEqual(told, [[id, expected]]);
    database.close();
  }
});

for (const [name, sinceStart, status] of [
  ["after", 1, "paused"],
  ["before", -1, "error"],
] as const) {
  test(`a checkpoint of an earlier release, without a revision, saved ${name} the capsule's start`, async () => {
    const host = new FakeHost();
    const database = openDatabase(":memory:");
    const before = fakeService({ host, database });
    const id = await runningCapsule(before);
    const { startedAt } = before.store.setIntent(before.store.get(id)!, "pause");
    host.guests.clear();
    host.adopt = async () => ({ kind: "checkpoint", revision: null, savedAt: startedAt! + sinceStart });
    const after = fakeService({ host, database });
    await after.recover();
    assert.equal(after.store.get(id)?.status, status);
    database.close();
  });
}

test("a start keeps the folders that its database does not know, and removes those that it explains", async () => {
  const host = new FakeHost();
  const [lost, own] = [openDatabase(":memory:"), openDatabase(":memory:")];
  const before = fakeService({ host, database: lost });
  const paused = await runningCapsule(before);
  await before.capsules.pause(before.team, paused);
  await before.templates.capture(before.team, { capsuleId: await runningCapsule(before), name: "t", overwrite: false });
  await before.settled();
  const [storage] = host.templates.keys();

  const after = fakeService({ host, database: own });
  const destroyed = await runningCapsule(after);
  await after.capsules.destroy(after.team, destroyed);
  for (const id of [destroyed, "cl-unfinished"]) host.folders.add(id);
  host.checkpoints.set(destroyed, { revision: 1, isStale: false });
  const { removed, kept } = await fakeService({ host, database: own }).recover();
  assert.deepEqual([removed, kept, host.folders.size, host.templates.size], [2, 2, 0, 0]);
  assert.deepEqual(host.kept, [`capsules/${paused}`, `templates/${storage}`]);
  for (const database of [lost, own]) database.close();
});

test("a start keeps the checkpoint of a capsule that an older database still has as starting, and starts it anew", async () => {
  const [host, database] = [new FakeHost(), openDatabase(":memory:")];
  const begun = Promise.withResolvers<void>();
  host.moment = () => {
    begun.resolve();
    return new Promise<never>(() => {}); // the database is copied here
  };
  const before = fakeService({ host, database });
  const shape = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
  const { id } = await before.capsules.create(before.team, shape);
  await begun.promise;
  host.moment = () => Promise.resolve();
  host.folders.add(id);
  host.checkpoints.set(id, { revision: 7, isStale: false });
  const after = fakeService({ host, database });
  const { removed, kept } = await after.recover();
  await after.settled();
  assert.deepEqual([removed, kept, host.kept], [0, 1, [`capsules/${id}`]]);
  assert.equal(after.store.get(id)?.status, "running");
  database.close();
});

/** The next start of a service with one running capsule; its agent does not answer before `host.stopHanging`. */
async function silentStart(prepare: (before: FakeService, id: string) => void = () => {}, log?: Log) {
  const host = new FakeHost();
  const database = openDatabase(":memory:");
  const clock = new FakeClock();
  const before = fakeService({ host, database, clock });
  const id = await running(before, 10);
  prepare(before, id);
  await before.capsules.close(0);
  host.isHanging = true;
  const after = fakeService({ host, database, clock, ...(log === undefined ? {} : { log }) });
  const recovering = after.recover();
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  let isOver = false;
  void recovering.then(() => {
    isOver = true;
  });
  clock.advance(999);
  await new Promise(setImmediate);
  assert.ok(!isOver, "most agents answer within a second");
  clock.advance(1);
  await recovering;
  return { after, host, clock, id, database };
}

const touch = { exec: "exec", files: "files", pty: "pty", processes: "processes" } as const;

test("a start does not wait for agents; requests that need such a guest do, and find it when it is adopted", async () => {
  const { after, host, clock, id, database } = await silentStart();
  const { capsules, team, adoptions } = after;
  assert.equal(adoptions.count, 1);
  assert.equal(capsules.get(team, id).status, "running");
  const uses = Object.values(touch).map((part) => capsules.use(team, id, part, () => part));
  clock.advance(4_999);
  host.stopHanging();
  assert.deepEqual(await Promise.all(uses), Object.values(touch));
  await after.settled();
  assert.equal(adoptions.count, 0);
  assert.equal((await capsules.pause(team, id)).status, "paused");
  database.close();
});

test("a request for a guest that is not adopted within 5 s is refused as unavailable", async () => {
  const { after, host, clock, id, database } = await silentStart();
  const { capsules, templates, team, other } = after;
  const outcomes = [
    ...Object.values(touch).map((part) => capsules.use(team, id, part, () => assert.fail("it is used"))),
    capsules.pause(team, id),
    templates.capture(team, { capsuleId: id, name: "t", overwrite: false }),
  ].map((outcome) => assert.rejects(outcome, { code: "unavailable", message: /has not answered$/ }));
  await assert.rejects(
    capsules.use(other, id, "exec", () => {}),
    { code: "not_found" },
  );
  await assert.rejects(capsules.resume(team, id), { code: "invalid_state" });
  clock.advance(5_000);
  await Promise.all(outcomes);
  host.stopHanging();
  await after.settled();
  assert.equal(capsules.get(team, id).status, "running");
  database.close();
});

test("idle time, the memory watch and the reconciler leave a capsule alone until it is adopted", async () => {
  const { after, host, clock, id, database } = await silentStart();
  clock.advance(60_000);
  await after.reconciler.reconcile();
  assert.equal(await after.pauses.forMemory(id), "refused");
  assert.deepEqual([after.store.get(id)?.status, after.store.get(id)?.intent], ["running", null]);
  host.stopHanging();
  await after.settled();
  clock.advance(0);
  await after.settled();
  assert.equal(after.store.get(id)?.status, "paused", "its idle time went on while the server was away");
  database.close();
});

test("the memory watch ends the VM of a capsule that is not adopted within 30 s, as it ends others", async () => {
  const { after, host, clock, id, database } = await silentStart();
  const reason = "the host was short of memory";
  clock.advance(28_999);
  assert.equal(after.transitions.endVm(id, reason), false);
  clock.advance(1);
  const used = after.capsules.use(after.team, id, "exec", () => assert.fail("it is used"));
  assert.equal(after.transitions.endVm(id, reason), true);
  await assert.rejects(used, { code: "invalid_state" });
  await after.settled();
  const { status, errorReason } = after.capsules.get(after.team, id);
  assert.deepEqual([status, errorReason], ["error", reason]);
  assert.deepEqual([host.guests.size, after.adoptions.count], [0, 0]);
  database.close();
});

test("a VM that is ended so does not lose the checkpoint of a pause that an earlier server has completed", async () => {
  const { after, host, clock, id, database } = await silentStart((before, id) => {
    const row = before.store.setIntent(before.store.get(id)!, "pause");
    before.host.checkpoints.set(id, { revision: row.revision, isStale: false });
  });
  clock.advance(30_000);
  assert.equal(after.transitions.endVm(id, "the host was short of memory"), true);
  await after.settled();
  assert.deepEqual([after.store.get(id)?.status, host.guests.size], ["paused", 0]);
  database.close();
});

test("a request that has waited for the adoption goes before the idle time", async () => {
  const { after, host, clock, id, database } = await silentStart();
  clock.advance(60_000);
  const over = Promise.withResolvers<void>();
  const used = after.capsules.use(after.team, id, "exec", (agent) => {
    agent.run({ cmd: "hang", args: [] }, { output() {}, exited() {}, failed() {} });
    return over.promise;
  });
  host.stopHanging();
  await after.settled();
  clock.advance(0);
  await after.settled();
  assert.equal(after.store.get(id)?.status, "running");
  over.resolve();
  await used;
  database.close();
});

test("a guest whose agent never answers takes its capsule to error, and so do requests that wait for it", async () => {
  const { after, host, id, database } = await silentStart();
  const used = after.capsules.use(after.team, id, "exec", () => assert.fail("it is used"));
  host.guests.clear();
  host.stopHanging();
  await assert.rejects(used, { code: "invalid_state" });
  const { status, errorReason } = after.capsules.get(after.team, id);
  assert.deepEqual([status, errorReason], ["error", "no answer"]);
  database.close();
});

test("DELETE does not wait for the adoption, and ends the requests that do", async () => {
  const { after, host, id, database } = await silentStart();
  const used = after.capsules.use(after.team, id, "exec", () => assert.fail("it is used"));
  const refused = assert.rejects(used, { code: "not_found" });
  await after.capsules.destroy(after.team, id);
  await refused;
  assert.deepEqual(
    [host.guests.size, host.folders.size, after.store.get(id), after.adoptions.count],
    [0, 0, undefined, 0],
  );
  database.close();
});

test("a server that stops during an adoption leaves guest and row to its next start, which adopts it", async () => {
  const told: unknown[] = [];
  const log = { info() {}, warn() {}, error: (about: unknown) => void told.push(about) };
  const { after, host, id, database } = await silentStart(undefined, log);
  await after.capsules.close(60_000);
  await after.reconciler.reconcile();
  assert.deepEqual([told, after.store.get(id)?.status, host.guests.has(id)], [[], "running", true]);
  host.stopHanging();
  const next = fakeService({ host, database });
  await next.recover();
  assert.equal(await next.capsules.use(next.team, id, "exec", () => "used"), "used");
  database.close();
});

test("a pause that an earlier server began and did not record is taken back by the adoption", async () => {
  const { after, host, id, database } = await silentStart(
    ({ store }, id) => void store.setIntent(store.get(id)!, "pause"),
  );
  const paused = after.capsules.pause(after.team, id);
  host.stopHanging();
  assert.equal((await paused).status, "paused");
  await after.settled();
  assert.equal(after.store.get(id)?.intent, null);
  database.close();
});
