/** Crashes at one certain step. model.test.ts tries random ones. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { type FakeService, fakeService } from "../../test/fakes/fake-service.ts";
import { openDatabase } from "../db/database.ts";

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
      told.push(args);
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
