import assert from "node:assert/strict";
import { test } from "node:test";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { CapsuleError } from "../wire/errors.ts";

async function capture(service: FakeService, name?: string, overwrite = false) {
  const capsuleId = await running(service);
  const template = await service.templates.capture(service.team, { capsuleId, name, overwrite });
  await service.settled();
  return { capsuleId, template };
}

async function made(service: FakeService, template: string): Promise<string> {
  const request = { template, vcpus: 8, memoryMb: 4_096, timeoutSec: 0 };
  const { id } = await service.capsules.create(service.team, request);
  await service.settled();
  return id;
}

const storages = (service: FakeService) => [...service.host.templates.keys()];

test("a capture makes a template of the team's own and ends the capsule", async () => {
  const service = fakeService();
  const { capsuleId, template } = await capture(service, "tools");
  assert.deepEqual(
    [template.name, template.type, template.vcpus, template.memoryMb, template.sizeBytes],
    ["tools", "snapshot", 1, 512, 5_000],
  );
  assert.throws(() => service.capsules.get(service.team, capsuleId), { code: "not_found" });
  assert.equal(service.host.folders.size, 0);
  const names = (team: string, type?: "base" | "snapshot") =>
    service.templates.list(team, type).map((each) => each.name);
  assert.deepEqual(names(service.team), ["minimal", "tools"]);
  assert.deepEqual(names(service.team, "snapshot"), ["tools"]);
  assert.deepEqual(names(service.team, "base"), ["minimal"]);
  assert.deepEqual(names(service.other), ["minimal"], "templates of one team are invisible to others");
});

test("a capsule made from a snapshot template takes the template's shape, whatever was asked", async () => {
  const service = fakeService();
  await capture(service, "tools");
  const view = service.capsules.get(service.team, await made(service, "tools"));
  assert.deepEqual([view.status, view.template, view.vcpus, view.memoryMb], ["running", "tools", 1, 512]);
  const request = { template: "tools", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
  await assert.rejects(service.capsules.create(service.other, request), { code: "not_found" });
});

test("an image that is added under the name of a team's template leaves that template to its team", async () => {
  const service = fakeService();
  await capture(service, "tools");
  service.host.images = () =>
    ["minimal", "tools"].map((name) => ({ name, sizeBytes: 1_000, diskMb: 4_096, createdAt: 0 }));
  const shapeOf = (team: string, id: string) => service.capsules.get(team, id).memoryMb;
  assert.equal(shapeOf(service.team, await made(service, "tools")), 512, "the template's");
  const request = { template: "tools", vcpus: 8, memoryMb: 4_096, timeoutSec: 0 };
  const { id } = await service.capsules.create(service.other, request);
  await service.settled();
  assert.equal(shapeOf(service.other, id), 4_096, "as asked, of the image");
});

test("names: the rule, the automatic one, reserved ones", async () => {
  const service = fakeService();
  assert.match((await capture(service)).template.name, /^template-[0-9a-f]{8}$/);
  const capsuleId = await running(service);
  for (const name of ["", ".x", "-x", "a b", "a/b", "x".repeat(65), "é", "a\0"]) {
    await assert.rejects(service.templates.capture(service.team, { capsuleId, name, overwrite: false }), {
      code: "invalid_request",
    });
  }
  await assert.rejects(service.templates.capture(service.team, { capsuleId, name: "minimal", overwrite: true }), {
    code: "name_reserved",
  });
  assert.equal(service.capsules.get(service.team, capsuleId).status, "running");
});

test("a taken name is refused and its capsule unharmed, unless overwriting", async () => {
  const service = fakeService();
  await capture(service, "tools");
  const capsuleId = await running(service);
  await assert.rejects(service.templates.capture(service.team, { capsuleId, name: "tools", overwrite: false }), {
    code: "template_name_taken",
  });
  assert.equal(service.capsules.get(service.team, capsuleId).status, "running");
  await service.templates.capture(service.team, { capsuleId, name: "tools", overwrite: true });
  await service.settled();
  assert.equal(storages(service).length, 1, "the old files are gone");
});

test("from a template that was replaced or deleted nothing is made ahead of time, though files stay for those who need them", async () => {
  const service = fakeService();
  await capture(service, "tools");
  const [first] = storages(service);
  const live = await made(service, "tools");
  await capture(service, "tools", true);
  assert.deepEqual([...new Set(service.host.retired)], [first]);
  assert.equal(storages(service).length, 2);
  const second = storages(service).find((storage) => storage !== first);
  await made(service, "tools");
  await service.templates.delete(service.team, "tools");
  assert.ok(service.host.retired.includes(second!));
  await service.capsules.destroy(service.team, live);
  await service.settled();
  assert.deepEqual(storages(service), [second]);
});

test("of two captures at once with one name, one succeeds and the other's capsule runs on", async () => {
  const service = fakeService();
  const ids = [await running(service), await running(service)];
  const outcomes = await Promise.allSettled(
    ids.map((capsuleId) => service.templates.capture(service.team, { capsuleId, name: "tools", overwrite: false })),
  );
  assert.deepEqual(
    outcomes.map((outcome) => outcome.status),
    ["fulfilled", "rejected"],
  );
  assert.equal((outcomes[1] as PromiseRejectedResult).reason.code, "template_name_taken");
  assert.equal(service.capsules.get(service.team, ids[1]!).status, "running");
});

test("a capture that fails leaves the capsule running, the name free and no files", async () => {
  const service = fakeService();
  const capsuleId = await running(service);
  service.host.before = (verb) => {
    if (verb === "capture") throw new CapsuleError("no_space", "the disk is full");
  };
  await assert.rejects(service.templates.capture(service.team, { capsuleId, name: "tools", overwrite: false }), {
    code: "no_space",
  });
  assert.equal(service.capsules.get(service.team, capsuleId).status, "running");
  assert.equal(service.host.guests.get(capsuleId)?.isStopped, false);
  assert.deepEqual(storages(service), []);
  service.host.before = () => {};
  await service.templates.capture(service.team, { capsuleId, name: "tools", overwrite: false });
});

test("deleting a template: running capsules go on and can be paused and resumed, paused ones cannot be resumed", async () => {
  const service = fakeService();
  await capture(service, "tools");
  const [live, paused] = [await made(service, "tools"), await made(service, "tools")];
  await service.capsules.pause(service.team, paused);
  await service.templates.delete(service.team, "tools");
  await assert.rejects(service.templates.delete(service.team, "tools"), { code: "not_found" });
  await assert.rejects(service.capsules.resume(service.team, paused), (error: CapsuleError) => {
    return error.code === "conflict" && error.message.includes("tools");
  });
  await service.capsules.pause(service.team, live);
  assert.equal((await service.capsules.resume(service.team, live)).status, "running");
  assert.equal(storages(service).length, 1, "files stay while a capsule needs them");
  await service.capsules.destroy(service.team, live);
  await service.settled();
  assert.equal(storages(service).length, 0);
  await service.capsules.destroy(service.team, paused);
});

test("overwriting a template: capsules paused on the old one keep its files and resume", async () => {
  const service = fakeService();
  await capture(service, "tools");
  const old = await made(service, "tools");
  await service.capsules.pause(service.team, old);
  await capture(service, "tools", true);
  assert.equal(storages(service).length, 2);
  assert.equal((await service.capsules.resume(service.team, old)).status, "running");
  await service.capsules.destroy(service.team, old);
  await service.settled();
  assert.equal(storages(service).length, 1);
});

test("a built-in image cannot be deleted, and the refusal tells it from a template that does not exist", async () => {
  const service = fakeService();
  const code = "not_found";
  const message = "minimal is an image of the server, not a snapshot template: only its operator removes it";
  await assert.rejects(service.templates.delete(service.team, "minimal"), { code, message });
  const missing = 'there is no snapshot template "minima"';
  await assert.rejects(service.templates.delete(service.team, "minima"), { code, message: missing });
});
