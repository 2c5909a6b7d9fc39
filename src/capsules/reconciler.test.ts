import assert from "node:assert/strict";
import { test } from "node:test";
import { buildFloors, running } from "../../test/fakes/floors.ts";

test("a folder without a record goes when two looks in a row find it; one with a record never", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.host.folders.add("cl-stray");
  floors.host.templates.set("tstray", { vcpus: 1, memoryMb: 512 });
  assert.deepEqual(await floors.reconciler.look(), []);
  assert.deepEqual(await floors.reconciler.look(), ["capsules/cl-stray", "templates/tstray"]);
  assert.deepEqual([...floors.host.folders], [id]);
  assert.deepEqual(await floors.reconciler.look(), []);
});

test("a folder whose record comes in time stays", async () => {
  const floors = buildFloors();
  floors.host.templates.set("tsoon", { vcpus: 1, memoryMb: 512 });
  await floors.reconciler.look();
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
  assert.deepEqual(await floors.reconciler.look(), []);
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
  await floors.reconciler.look();
  assert.deepEqual([floors.host.folders.size, floors.records.all().length], [0, 0]);
});
