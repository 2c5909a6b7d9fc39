import assert from "node:assert/strict";
import { test } from "node:test";
import type { HostVerb } from "../../test/fakes/fake-host.ts";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";

const dayMs = 86_400_000;
const shape = { vcpus: 1, memoryMb: 512 };

/** A paused capsule's folder, as another database had it. */
function addPaused(service: FakeService, id: string): void {
  service.host.folders.add(id);
  service.host.checkpoints.set(id, { revision: 1, isStale: false });
}

test("a folder without a record goes when two looks in a row find it; one with a record never", async () => {
  const service = fakeService();
  const id = await running(service);
  service.host.folders.add("cl-stray");
  addPaused(service, "cl-lost");
  service.host.templates.set("tlost", shape);
  assert.deepEqual(await service.reconciler.reconcile(), []);
  const names = ["capsules/cl-stray", "capsules/cl-lost", "templates/tlost"];
  assert.deepEqual(await service.reconciler.reconcile(), names);
  assert.deepEqual([...service.host.folders], [id]);
  assert.deepEqual(service.host.kept, names.slice(1), "complete, and not explained");
  assert.deepEqual(await service.reconciler.reconcile(), []);
});

test("a folder that this database explains is removed: destroyed, deleted, or of a capture that was given up", async () => {
  const service = fakeService();
  const { host, capsules, templates, team } = service;
  const destroyed = await running(service);
  await capsules.destroy(team, destroyed);
  await templates.capture(team, { capsuleId: await running(service), name: "tools", overwrite: false });
  await service.settled();
  const [deleted] = host.templates.keys();
  await templates.delete(team, "tools");
  host.removeTemplate = () => Promise.reject(new Error("input/output error"));
  service.templateRows.insert = () => {
    throw new Error("database or disk is full");
  };
  const capsuleId = await running(service);
  await assert.rejects(templates.capture(team, { capsuleId, name: "given-up", overwrite: false }));
  Reflect.deleteProperty(host, "removeTemplate");
  await service.settled();
  const [givenUp] = host.templates.keys();
  // A power cut may bring back what was removed without an fsync.
  addPaused(service, destroyed);
  host.templates.set(deleted!, shape);
  assert.deepEqual(await service.reconciler.reconcile(), []);
  const settled = await service.reconciler.reconcile();
  assert.deepEqual(settled, [`capsules/${destroyed}`, `templates/${givenUp}`, `templates/${deleted}`]);
  assert.deepEqual([host.kept, host.templates.size, [...host.folders]], [[], 0, [capsuleId]]);
});

/** Passes of the reconciler over so many days, twice a day. */
async function reconcileFor(service: FakeService, days: number): Promise<void> {
  for (let passes = 0; passes < 2 * days; passes++) {
    service.clock.advance(dayMs / 2);
    await service.reconciler.reconcile();
  }
}

test("what explains a template's folder is forgotten after 90 days", async () => {
  const service = fakeService();
  const { templates, templateRows, team, host } = service;
  await templates.capture(team, { capsuleId: await running(service), name: "tools", overwrite: false });
  const [storage] = host.templates.keys();
  await reconcileFor(service, 100);
  assert.ok(!templateRows.isNoted(storage!), "its row explains it");
  await templates.delete(team, "tools");
  await reconcileFor(service, 89);
  assert.ok(templateRows.isNoted(storage!));
  await reconcileFor(service, 4);
  assert.ok(!templateRows.isNoted(storage!));
});

test("a tombstone is forgotten after 90 days, but for that of a folder that is still there", async () => {
  const service = fakeService();
  const { store, capsules, team, host } = service; // the failing removal of each pass is logged
  const [gone, stuck] = [await running(service), await running(service)];
  await capsules.destroy(team, gone);
  service.clock.advance(1);
  host.before = (verb, id) => {
    if (verb === "remove" && id === stuck) throw new Error("input/output error");
  };
  await assert.rejects(capsules.destroy(team, stuck));
  await reconcileFor(service, 89);
  assert.deepEqual([store.wasDestroyed(gone), store.wasDestroyed(stuck)], [true, true]);
  await reconcileFor(service, 4);
  assert.deepEqual([store.wasDestroyed(gone), store.wasDestroyed(stuck)], [false, true]);
});

test("a clock set a year ahead forgets nothing that explains a folder before it has stayed there for a day", async () => {
  const service = fakeService();
  const { store, capsules, templates, templateRows, team, host, clock } = service;
  await templates.capture(team, { capsuleId: await running(service), name: "tools", overwrite: false });
  const [storage] = host.templates.keys();
  await templates.delete(team, "tools");
  const id = await running(service);
  await capsules.destroy(team, id);
  await reconcileFor(service, 3);
  clock.step(365 * dayMs);
  await service.reconciler.reconcile();
  clock.advance(dayMs / 2);
  await service.reconciler.reconcile();
  assert.deepEqual([store.wasDestroyed(id), templateRows.isNoted(storage!)], [true, true]);
});

test("a look that comes while another one takes long is no second look", async () => {
  const service = fakeService();
  const id = await running(service);
  service.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(service.capsules.destroy(service.team, id));
  service.host.before = () => {};
  const { promise, resolve } = Promise.withResolvers<void>();
  service.host.moment = () => promise;
  const long = service.reconciler.reconcile();
  service.host.templates.set("tsoon", { vcpus: 1, memoryMb: 512 });
  const other = service.reconciler.reconcile();
  await new Promise(setImmediate);
  resolve();
  assert.deepEqual(await Promise.all([long, other]), [[], []]);
  assert.ok(service.host.templates.has("tsoon"));
  assert.deepEqual(await service.reconciler.reconcile(), ["templates/tsoon"]);
});

test("a folder whose record comes in time stays", async () => {
  const service = fakeService();
  service.host.templates.set("tsoon", { vcpus: 1, memoryMb: 512 });
  await service.reconciler.reconcile();
  const row = {
    storage: "tsoon",
    teamId: service.team,
    name: "soon",
    vcpus: 1,
    memoryMb: 512,
    ...{ diskMb: 4_096, canGrow: 1 },
    sizeBytes: 1,
    createdAt: 1,
  };
  service.templateRows.insert(row);
  assert.deepEqual(await service.reconciler.reconcile(), []);
  assert.ok(service.host.templates.has("tsoon"));
});

test("a destruction that failed half-way is finished", async () => {
  const service = fakeService();
  const id = await running(service);
  service.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(service.capsules.destroy(service.team, id), /input\/output error/);
  assert.throws(() => service.capsules.get(service.team, id), { code: "not_found" });
  service.host.before = () => {};
  await service.reconciler.reconcile();
  assert.deepEqual([service.host.folders.size, service.store.all().length], [0, 0]);
});

test("a destruction that fails again at the next start brings nothing back, and is finished later", async () => {
  const service = fakeService();
  const id = await running(service);
  service.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(service.capsules.destroy(service.team, id), /input\/output error/);
  const restarted = fakeService({ host: service.host, database: service.database });
  await restarted.recover();
  assert.throws(() => restarted.capsules.get(restarted.team, id), { code: "not_found" });
  assert.deepEqual(restarted.capsules.list(restarted.team), []);
  service.host.before = () => {};
  await restarted.reconciler.reconcile();
  assert.deepEqual([service.host.folders.size, restarted.store.all().length], [0, 0]);
});

for (const [change, allowed] of [
  ["pause", "running"],
  ["resume", "paused"],
] as const) {
  test(`a ${change} that fails, and cannot be taken back in the record, does not bar the way for ever`, async () => {
    const service = fakeService();
    const id = await running(service, 1);
    if (change === "resume") await service.capsules.pause(service.team, id);
    breakRecordsAfter(service, change === "pause" ? "save" : "restore");
    await assert.rejects(service.capsules[change](service.team, id));
    service.host.before = () => {};
    assert.equal(service.store.get(id)?.intent, change);
    Reflect.deleteProperty(service.capsuleRows, "change");
    await service.reconciler.reconcile();
    assert.deepEqual([service.capsules.get(service.team, id).status, service.store.get(id)?.intent], [allowed, null]);
    if (change === "resume") await service.capsules.resume(service.team, id);
    else service.clock.advance(60_000);
    await service.settled();
    assert.equal(service.capsules.get(service.team, id).status, change === "pause" ? "paused" : "running");
  });
}

/** From the failure of the host's verb on, nothing can be written. */
function breakRecordsAfter(service: FakeService, broken: HostVerb): void {
  service.host.before = (verb) => {
    if (verb !== broken) return;
    service.capsuleRows.change = () => {
      throw new Error("database or disk is full");
    };
    throw new Error("input/output error");
  };
}

test("a change under way is nobody's to take back", async () => {
  const service = fakeService();
  const id = await running(service);
  const pausing = service.capsules.pause(service.team, id);
  await service.reconciler.reconcile();
  assert.equal((await pausing).status, "paused");
});
