import assert from "node:assert/strict";
import { test } from "node:test";
import type { HostVerb } from "../../test/fakes/fake-host.ts";
import { buildFloors, type Floors, running } from "../../test/fakes/floors.ts";

test("a folder without a record goes when two looks in a row find it; one with a record never", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.host.folders.add("cl-stray");
  floors.host.templates.set("tstray", { vcpus: 1, memoryMb: 512 });
  assert.deepEqual(await floors.reconciler.reconcile(), []);
  assert.deepEqual(await floors.reconciler.reconcile(), ["capsules/cl-stray", "templates/tstray"]);
  assert.deepEqual([...floors.host.folders], [id]);
  assert.deepEqual(await floors.reconciler.reconcile(), []);
});

test("a look that comes while another one takes long is no second look", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(floors.capsules.destroy(floors.team, id));
  floors.host.before = () => {};
  const { promise, resolve } = Promise.withResolvers<void>();
  floors.host.moment = () => promise;
  const long = floors.reconciler.reconcile();
  floors.host.templates.set("tsoon", { vcpus: 1, memoryMb: 512 });
  const other = floors.reconciler.reconcile();
  await new Promise(setImmediate);
  resolve();
  assert.deepEqual(await Promise.all([long, other]), [[], []]);
  assert.ok(floors.host.templates.has("tsoon"));
  assert.deepEqual(await floors.reconciler.reconcile(), ["templates/tsoon"]);
});

test("a folder whose record comes in time stays", async () => {
  const floors = buildFloors();
  floors.host.templates.set("tsoon", { vcpus: 1, memoryMb: 512 });
  await floors.reconciler.reconcile();
  const row = {
    storage: "tsoon",
    teamId: floors.team,
    name: "soon",
    vcpus: 1,
    memoryMb: 512,
    sizeBytes: 1,
    createdAt: 1,
  };
  floors.templateRows.insert(row);
  assert.deepEqual(await floors.reconciler.reconcile(), []);
  assert.ok(floors.host.templates.has("tsoon"));
});

test("a destruction that failed half-way is finished", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(floors.capsules.destroy(floors.team, id), /input\/output error/);
  assert.throws(() => floors.capsules.get(floors.team, id), { code: "not_found" });
  floors.host.before = () => {};
  await floors.reconciler.reconcile();
  assert.deepEqual([floors.host.folders.size, floors.store.all().length], [0, 0]);
});

test("a destruction that fails again at the next start brings nothing back, and is finished later", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.host.before = (verb) => {
    if (verb === "remove") throw new Error("input/output error");
  };
  await assert.rejects(floors.capsules.destroy(floors.team, id), /input\/output error/);
  const restarted = buildFloors({ host: floors.host, database: floors.database });
  await restarted.recover();
  assert.throws(() => restarted.capsules.get(restarted.team, id), { code: "not_found" });
  assert.deepEqual(restarted.capsules.list(restarted.team), []);
  floors.host.before = () => {};
  await restarted.reconciler.reconcile();
  assert.deepEqual([floors.host.folders.size, restarted.store.all().length], [0, 0]);
});

for (const [change, allowed] of [
  ["pause", "running"],
  ["resume", "paused"],
] as const) {
  test(`a ${change} that fails, and cannot be taken back in the record, does not bar the way for ever`, async () => {
    const floors = buildFloors();
    const id = await running(floors, 1);
    if (change === "resume") await floors.capsules.pause(floors.team, id);
    breakRecordsAfter(floors, change === "pause" ? "save" : "restore");
    await assert.rejects(floors.capsules[change](floors.team, id));
    floors.host.before = () => {};
    assert.equal(floors.store.get(id)?.intent, change);
    Reflect.deleteProperty(floors.capsuleRows, "change");
    await floors.reconciler.reconcile();
    assert.deepEqual([floors.capsules.get(floors.team, id).status, floors.store.get(id)?.intent], [allowed, null]);
    if (change === "resume") await floors.capsules.resume(floors.team, id);
    else floors.clock.advance(60_000);
    await floors.settled();
    assert.equal(floors.capsules.get(floors.team, id).status, change === "pause" ? "paused" : "running");
  });
}

/** From the failure of the host's verb on, nothing can be written. */
function breakRecordsAfter(floors: Floors, broken: HostVerb): void {
  floors.host.before = (verb) => {
    if (verb !== broken) return;
    floors.capsuleRows.change = () => {
      throw new Error("database or disk is full");
    };
    throw new Error("input/output error");
  };
}

test("a change under way is nobody's to take back", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const pausing = floors.capsules.pause(floors.team, id);
  await floors.reconciler.reconcile();
  assert.equal((await pausing).status, "paused");
});
