import assert from "node:assert/strict";
import { test } from "node:test";
import { buildFloors, type Floors, running } from "../../test/fakes/floors.ts";

/** The calls of a policy and of the host, in order. */
function record(floors: Floors): () => string[] {
  let calls: string[] = [];
  floors.runs.apply({
    began: ({ status }, isAdopted) => calls.push(`began ${status}${isAdopted ? ", adopted" : ""}`),
    ended: () => calls.push("ended"),
    pauseFailed: ({ status }) => calls.push(`pauseFailed ${status}`),
    close: () => calls.push("close"),
  });
  floors.host.before = (verb) => void calls.push(verb);
  return () => {
    const taken = calls;
    calls = [];
    return taken;
  };
}

test("a policy hears of a run after its release, and of its end before the guest is saved or ended", async () => {
  const floors = buildFloors();
  const { capsules, team } = floors;
  const calls = record(floors);
  const id = await running(floors);
  assert.deepEqual(calls(), ["start", "release", "began running"]);
  await capsules.pause(team, id);
  await floors.settled();
  assert.deepEqual(calls(), ["ended", "save", "ended", "end"]);
  await capsules.resume(team, id);
  assert.deepEqual(calls(), ["restore", "release", "began running"]);
  await capsules.destroy(team, id);
  assert.deepEqual(calls(), ["ended", "remove"]);
});

test("a policy hears of a pause and of a capture that failed", async () => {
  const floors = buildFloors();
  const { capsules, templates, host, team } = floors;
  const id = await running(floors);
  const calls = record(floors);
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
  const floors = buildFloors();
  const id = await running(floors);
  const calls = record(floors);
  floors.host.guests.get(id)?.endWith({ kind: "powered_off", reason: "off" });
  await new Promise(setImmediate);
  await floors.settled();
  assert.deepEqual(calls(), ["ended", "end"]);
});

test("a policy is told which guest an earlier daemon left", async () => {
  const before = buildFloors();
  await running(before);
  const after = buildFloors({ host: before.host, database: before.database, clock: before.clock });
  const calls = record(after);
  await after.recover();
  assert.deepEqual(calls(), ["release", "began running, adopted"]);
});

test("a guest that is lost during its release has no run for a policy", async () => {
  const floors = buildFloors();
  const calls = record(floors);
  floors.host.before = (verb, id) => {
    if (verb !== "release") return;
    floors.host.guests.get(id)?.endWith({ kind: "lost", reason: "shot" });
    floors.runs.end(id, floors.host.guests.get(id)!, "error");
  };
  await running(floors);
  assert.deepEqual(calls(), ["ended"]);
});

test("policies are closed when the server stops", async () => {
  const floors = buildFloors();
  const calls = record(floors);
  await floors.capsules.close(0);
  assert.deepEqual(calls(), ["close"]);
});
