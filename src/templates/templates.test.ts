import assert from "node:assert/strict";
import { test } from "node:test";
import { buildFloors, type Floors, running } from "../../test/fakes/floors.ts";
import { CapsuleError } from "../wire/errors.ts";

async function capture(floors: Floors, name?: string, overwrite = false) {
  const capsuleId = await running(floors);
  const template = await floors.templates.capture(floors.team, { capsuleId, name, overwrite });
  await floors.settled();
  return { capsuleId, template };
}

async function made(floors: Floors, template: string): Promise<string> {
  const request = { template, vcpus: 8, memoryMb: 4_096, timeoutSec: 0 };
  const { id } = await floors.capsules.create(floors.team, request);
  await floors.settled();
  return id;
}

const storages = (floors: Floors) => [...floors.host.templates.keys()];

test("a capture makes a template of the team's own and ends the capsule", async () => {
  const floors = buildFloors();
  const { capsuleId, template } = await capture(floors, "tools");
  assert.deepEqual(
    [template.name, template.type, template.vcpus, template.memoryMb, template.sizeBytes],
    ["tools", "snapshot", 1, 512, 5_000],
  );
  assert.throws(() => floors.capsules.get(floors.team, capsuleId), { code: "not_found" });
  assert.equal(floors.host.folders.size, 0);
  const names = (team: string, type?: "base" | "snapshot") =>
    floors.templates.list(team, type).map((each) => each.name);
  assert.deepEqual(names(floors.team), ["minimal", "tools"]);
  assert.deepEqual(names(floors.team, "snapshot"), ["tools"]);
  assert.deepEqual(names(floors.team, "base"), ["minimal"]);
  assert.deepEqual(names(floors.other), ["minimal"], "templates of one team are invisible to others");
});

test("a capsule made from a snapshot template takes the template's shape, whatever was asked", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  const view = floors.capsules.get(floors.team, await made(floors, "tools"));
  assert.deepEqual([view.status, view.template, view.vcpus, view.memoryMb], ["running", "tools", 1, 512]);
  const request = { template: "tools", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
  await assert.rejects(floors.capsules.create(floors.other, request), { code: "not_found" });
});

test("an image that is added under the name of a team's template leaves that template to its team", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  floors.host.images = () => ["minimal", "tools"].map((name) => ({ name, sizeBytes: 1_000, createdAt: 0 }));
  const shapeOf = (team: string, id: string) => floors.capsules.get(team, id).memoryMb;
  assert.equal(shapeOf(floors.team, await made(floors, "tools")), 512, "the template's");
  const request = { template: "tools", vcpus: 8, memoryMb: 4_096, timeoutSec: 0 };
  const { id } = await floors.capsules.create(floors.other, request);
  await floors.settled();
  assert.equal(shapeOf(floors.other, id), 4_096, "as asked, of the image");
});

test("names: the rule, the automatic one, reserved ones", async () => {
  const floors = buildFloors();
  assert.match((await capture(floors)).template.name, /^template-[0-9a-f]{8}$/);
  const capsuleId = await running(floors);
  for (const name of ["", ".x", "-x", "a b", "a/b", "x".repeat(65), "é", "a\0"]) {
    await assert.rejects(floors.templates.capture(floors.team, { capsuleId, name, overwrite: false }), {
      code: "invalid_request",
    });
  }
  await assert.rejects(floors.templates.capture(floors.team, { capsuleId, name: "minimal", overwrite: true }), {
    code: "name_reserved",
  });
  assert.equal(floors.capsules.get(floors.team, capsuleId).status, "running");
});

test("a taken name is refused and its capsule unharmed, unless overwriting", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  const capsuleId = await running(floors);
  await assert.rejects(floors.templates.capture(floors.team, { capsuleId, name: "tools", overwrite: false }), {
    code: "template_name_taken",
  });
  assert.equal(floors.capsules.get(floors.team, capsuleId).status, "running");
  await floors.templates.capture(floors.team, { capsuleId, name: "tools", overwrite: true });
  await floors.settled();
  assert.equal(storages(floors).length, 1, "the old files are gone");
});

test("from a template that was replaced or deleted nothing is made ahead of time, though files stay for those who need them", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  const [first] = storages(floors);
  const live = await made(floors, "tools");
  await capture(floors, "tools", true);
  assert.deepEqual([...new Set(floors.host.retired)], [first]);
  assert.equal(storages(floors).length, 2);
  const second = storages(floors).find((storage) => storage !== first);
  await made(floors, "tools");
  await floors.templates.delete(floors.team, "tools");
  assert.ok(floors.host.retired.includes(second!));
  await floors.capsules.destroy(floors.team, live);
  await floors.settled();
  assert.deepEqual(storages(floors), [second]);
});

test("of two captures at once with one name, one succeeds and the other's capsule runs on", async () => {
  const floors = buildFloors();
  const ids = [await running(floors), await running(floors)];
  const outcomes = await Promise.allSettled(
    ids.map((capsuleId) => floors.templates.capture(floors.team, { capsuleId, name: "tools", overwrite: false })),
  );
  assert.deepEqual(
    outcomes.map((outcome) => outcome.status),
    ["fulfilled", "rejected"],
  );
  assert.equal((outcomes[1] as PromiseRejectedResult).reason.code, "template_name_taken");
  assert.equal(floors.capsules.get(floors.team, ids[1]!).status, "running");
});

test("a capture that fails leaves the capsule running, the name free and no files", async () => {
  const floors = buildFloors();
  const capsuleId = await running(floors);
  floors.host.before = (verb) => {
    if (verb === "capture") throw new CapsuleError("no_space", "the disk is full");
  };
  await assert.rejects(floors.templates.capture(floors.team, { capsuleId, name: "tools", overwrite: false }), {
    code: "no_space",
  });
  assert.equal(floors.capsules.get(floors.team, capsuleId).status, "running");
  assert.equal(floors.host.guests.get(capsuleId)?.isStopped, false);
  assert.deepEqual(storages(floors), []);
  floors.host.before = () => {};
  await floors.templates.capture(floors.team, { capsuleId, name: "tools", overwrite: false });
});

test("deleting a template: running capsules go on and can be paused and resumed, paused ones cannot be resumed", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  const [live, paused] = [await made(floors, "tools"), await made(floors, "tools")];
  await floors.capsules.pause(floors.team, paused);
  await floors.templates.delete(floors.team, "tools");
  await assert.rejects(floors.templates.delete(floors.team, "tools"), { code: "not_found" });
  await assert.rejects(floors.capsules.resume(floors.team, paused), (error: CapsuleError) => {
    return error.code === "conflict" && error.message.includes("tools");
  });
  await floors.capsules.pause(floors.team, live);
  assert.equal((await floors.capsules.resume(floors.team, live)).status, "running");
  assert.equal(storages(floors).length, 1, "files stay while a capsule needs them");
  await floors.capsules.destroy(floors.team, live);
  await floors.settled();
  assert.equal(storages(floors).length, 0);
  await floors.capsules.destroy(floors.team, paused);
});

test("overwriting a template: capsules paused on the old one keep its files and resume", async () => {
  const floors = buildFloors();
  await capture(floors, "tools");
  const old = await made(floors, "tools");
  await floors.capsules.pause(floors.team, old);
  await capture(floors, "tools", true);
  assert.equal(storages(floors).length, 2);
  assert.equal((await floors.capsules.resume(floors.team, old)).status, "running");
  await floors.capsules.destroy(floors.team, old);
  await floors.settled();
  assert.equal(storages(floors).length, 1);
});

test("a built-in template cannot be deleted: there is no snapshot template of that name", async () => {
  const floors = buildFloors();
  await assert.rejects(floors.templates.delete(floors.team, "minimal"), { code: "not_found" });
});
