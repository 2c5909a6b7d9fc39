import assert from "node:assert/strict";
import { test } from "node:test";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { auditOfService } from "./service-audit.ts";

/** The team's entries, oldest first. */
function entriesOf({ audit, team }: FakeService): unknown[] {
  const { entries } = audit.list(team, { limit: 100 });
  return entries
    .map(({ keyId, action, capsuleId, subject, status }) => [keyId, action, capsuleId, subject, status])
    .toReversed();
}

test("a pause by the idle timer leaves an entry of the service; a client's pause leaves none here", async () => {
  const service = fakeService();
  const [idle, asked] = [await running(service, 10), await running(service)];
  await service.capsules.pause(service.team, asked);
  service.clock.advance(10_000);
  await service.settled();
  assert.equal(service.capsules.get(service.team, idle).status, "paused");
  assert.deepEqual(entriesOf(service), [["", "capsule.pause", idle, null, 200]]);
});

test("a pause by the idle timer that fails leaves no entry", async () => {
  const service = fakeService();
  const id = await running(service, 10);
  let saves = 0;
  service.host.before = (verb) => {
    if (verb !== "save") return;
    saves++;
    throw new Error("the disk is full");
  };
  service.clock.advance(10_000);
  await service.settled();
  assert.deepEqual([saves, service.capsules.get(service.team, id).status], [1, "running"]);
  assert.deepEqual(entriesOf(service), []);
});

test("a capsule that ends by itself leaves an entry, with the reason when it is lost", async () => {
  const service = fakeService();
  const [off, lost, destroyed] = [await running(service), await running(service), await running(service)];
  service.host.guests.get(off)!.endWith({ kind: "powered_off", reason: "off" });
  await service.settled();
  service.host.guests.get(lost)!.endWith({ kind: "lost", reason: "it used too much memory" });
  await service.settled();
  await service.capsules.destroy(service.team, destroyed);
  assert.deepEqual(entriesOf(service), [
    ["", "capsule.end", off, null, 200],
    ["", "capsule.end", lost, "it used too much memory", 500],
  ]);
  assert.deepEqual(service.audit.list(service.other, { limit: 1 }).entries, []);
});

test("a team whose writes are throttled has an entry with the reason, and another when they no longer are", () => {
  const service = fakeService();
  const { onDiskShortage } = auditOfService(service.audit);
  onDiskShortage(service.team, "quota");
  onDiskShortage(service.team, undefined);
  assert.deepEqual(entriesOf(service), [
    ["", "disk.throttle", null, "quota", 507],
    ["", "disk.unthrottle", null, null, 200],
  ]);
});
