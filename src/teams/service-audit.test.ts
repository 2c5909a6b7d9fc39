import assert from "node:assert/strict";
import { test } from "node:test";
import { buildFloors, type Floors, running } from "../../test/fakes/floors.ts";
import { auditOfService } from "./service-audit.ts";

/** The team's entries, oldest first. */
function entriesOf({ audit, team }: Floors): unknown[] {
  const { entries } = audit.list(team, { limit: 100 });
  return entries
    .map(({ keyId, action, capsuleId, subject, status }) => [keyId, action, capsuleId, subject, status])
    .toReversed();
}

test("a pause by the idle timer leaves an entry of the service; a client's pause leaves none here", async () => {
  const floors = buildFloors();
  const [idle, asked] = [await running(floors, 10), await running(floors)];
  await floors.capsules.pause(floors.team, asked);
  floors.clock.advance(10_000);
  await floors.settled();
  assert.equal(floors.capsules.get(floors.team, idle).status, "paused");
  assert.deepEqual(entriesOf(floors), [["", "capsule.pause", idle, null, 200]]);
});

test("a pause by the idle timer that fails leaves no entry", async () => {
  const floors = buildFloors();
  const id = await running(floors, 10);
  let saves = 0;
  floors.host.before = (verb) => {
    if (verb !== "save") return;
    saves++;
    throw new Error("the disk is full");
  };
  floors.clock.advance(10_000);
  await floors.settled();
  assert.deepEqual([saves, floors.capsules.get(floors.team, id).status], [1, "running"]);
  assert.deepEqual(entriesOf(floors), []);
});

test("a capsule that ends by itself leaves an entry, with the reason when it is lost", async () => {
  const floors = buildFloors();
  const [off, lost, destroyed] = [await running(floors), await running(floors), await running(floors)];
  floors.host.guests.get(off)!.endWith({ kind: "powered_off", reason: "off" });
  await floors.settled();
  floors.host.guests.get(lost)!.endWith({ kind: "lost", reason: "it used too much memory" });
  await floors.settled();
  await floors.capsules.destroy(floors.team, destroyed);
  assert.deepEqual(entriesOf(floors), [
    ["", "capsule.end", off, null, 200],
    ["", "capsule.end", lost, "it used too much memory", 500],
  ]);
  assert.deepEqual(floors.audit.list(floors.other, { limit: 1 }).entries, []);
});

test("a team whose writes are throttled has an entry with the reason, and another when they no longer are", () => {
  const floors = buildFloors();
  const { onDiskShortage } = auditOfService(floors.audit);
  onDiskShortage(floors.team, "quota");
  onDiskShortage(floors.team, undefined);
  assert.deepEqual(entriesOf(floors), [
    ["", "disk.throttle", null, "quota", 507],
    ["", "disk.unthrottle", null, null, 200],
  ]);
});
