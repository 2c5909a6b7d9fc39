import assert from "node:assert/strict";
import { test } from "node:test";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";

/** The calls of a policy and of the host, in order. */
function record(service: FakeService): () => string[] {
  let calls: string[] = [];
  service.runs.apply({
    began: ({ status }, isAdopted) => calls.push(`began ${status}${isAdopted ? ", adopted" : ""}`),
    changed: ({ timeoutSec }) => calls.push(`changed ${timeoutSec}`),
    ended: () => calls.push("ended"),
    pauseFailed: ({ status }) => calls.push(`pauseFailed ${status}`),
    close: () => calls.push("close"),
  });
  service.host.before = (verb) => void calls.push(verb);
  return () => {
    const taken = calls;
    calls = [];
    return taken;
  };
}

test("a policy hears of a run after its release, and of its end before the guest is saved or ended", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  const calls = record(service);
  const id = await running(service);
  assert.deepEqual(calls(), ["start", "release", "began running"]);
  await capsules.pause(team, id);
  await service.settled();
  assert.deepEqual(calls(), ["ended", "save", "ended", "end"]);
  await capsules.resume(team, id);
  assert.deepEqual(calls(), ["restore", "release", "began running"]);
  await capsules.destroy(team, id);
  assert.deepEqual(calls(), ["ended", "remove"]);
});

test("a policy hears of a pause and of a capture that failed", async () => {
  const service = fakeService();
  const { capsules, templates, host, team } = service;
  const id = await running(service);
  const calls = record(service);
  host.before = (verb) => {
    if (verb === "save") throw new Error("the disk is full");
  };
  await assert.rejects(capsules.pause(team, id), { code: "agent_error" });
  assert.deepEqual(calls(), ["ended", "pauseFailed running"]);
  await assert.rejects(templates.capture(team, { capsuleId: id, name: "t", overwrite: false }), {
    code: "agent_error",
  });
  assert.deepEqual(calls(), ["ended", "pauseFailed running"]);
});

test("a policy hears of a guest that ends by itself", async () => {
  const service = fakeService();
  const id = await running(service);
  const calls = record(service);
  service.host.guests.get(id)?.endWith({ kind: "powered_off", reason: "off" });
  await new Promise(setImmediate);
  await service.settled();
  assert.deepEqual(calls(), ["ended", "end"]);
});

test("a policy is told which guest an earlier daemon left", async () => {
  const before = fakeService();
  await running(before);
  const after = fakeService({ host: before.host, database: before.database, clock: before.clock });
  const calls = record(after);
  await after.recover();
  assert.deepEqual(calls(), ["release", "began running, adopted"]);
});

test("a guest that is lost during its release has no run for a policy", async () => {
  const service = fakeService();
  const calls = record(service);
  service.host.before = (verb, id) => {
    if (verb !== "release") return;
    service.host.guests.get(id)?.endWith({ kind: "lost", reason: "shot" });
    service.runs.end(id, service.host.guests.get(id)!, "error");
  };
  await running(service);
  assert.deepEqual(calls(), ["ended"]);
});

test("policies are closed when the server stops", async () => {
  const service = fakeService();
  const calls = record(service);
  await service.capsules.close(0);
  assert.deepEqual(calls(), ["close"]);
});
