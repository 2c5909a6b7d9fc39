import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, fakeService, running } from "../../test/fakes/fake-service.ts";

const status = async (service: ReturnType<typeof fakeService>, id: string) => {
  await service.settled();
  return service.capsules.get(service.team, id).status;
};

test("an idle capsule is paused at its TTL, counted from the moment it began to run", async () => {
  const service = fakeService();
  const id = await running(service, 10);
  service.clock.advance(9_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
});

test("a TTL of 0 never pauses", async () => {
  const service = fakeService();
  const id = await running(service, 0);
  service.clock.advance(10 ** 12);
  assert.equal(await status(service, id), "running");
});

test("exec and ping push the pause back; the clock runs anew after a resume", async () => {
  const service = fakeService();
  const id = await running(service, 10);
  service.clock.advance(8_000);
  service.capsules.ping(service.team, id);
  service.clock.advance(8_000);
  await beginExec(service, id)();
  service.clock.advance(9_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
  await service.capsules.resume(service.team, id);
  service.clock.advance(9_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
});

test("a command in flight holds the pause off until its end, and then the whole TTL runs", async () => {
  const service = fakeService();
  const id = await running(service, 3);
  const ended = [beginExec(service, id), beginExec(service, id)];
  service.clock.advance(8_000);
  await ended[0]!();
  service.clock.advance(8_000);
  assert.equal(await status(service, id), "running");
  await ended[1]!();
  service.clock.advance(2_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
});

test("an automatic pause that fails is tried again after half a minute", async () => {
  const service = fakeService();
  for (const ttlSec of [3, 3_600]) {
    const id = await running(service, ttlSec);
    service.host.before = (verb) => {
      if (verb === "save") throw new Error("busy");
    };
    service.clock.advance(ttlSec * 1_000);
    assert.equal(await status(service, id), "running");
    service.host.before = () => {};
    service.clock.advance(29_000);
    assert.equal(await status(service, id), "running", "not at once");
    service.clock.advance(1_000);
    assert.equal(await status(service, id), "paused", "nor after a whole TTL");
  }
});

test("last_active_at is null until the first exec or ping, and survives a restart once flushed", async () => {
  const service = fakeService();
  const id = await running(service, 3);
  assert.equal(service.capsules.get(service.team, id).lastActiveAt, null);
  service.clock.advance(1_000);
  service.capsules.ping(service.team, id);
  assert.equal(service.capsules.get(service.team, id).lastActiveAt, 1_001_000);
  service.activity.flush();
  assert.equal(service.capsuleRows.get(id)?.lastActiveAt, 1_001_000);
});

test("an automatic pause that cannot even be begun is tried again after half a minute", async () => {
  const service = fakeService();
  const id = await running(service, 10);
  service.capsuleRows.change = () => {
    throw new Error("database or disk is full");
  };
  service.clock.advance(10_000);
  await new Promise(setImmediate); // the refused change has no lock to wait for
  Reflect.deleteProperty(service.capsuleRows, "change");
  service.clock.advance(29_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
});

test("the time without activity goes on while the server is away", async () => {
  const before = fakeService();
  const id = await running(before, 10);
  before.clock.advance(6_000);
  await before.capsules.close(0);
  const after = fakeService({ host: before.host, database: before.database, clock: before.clock });
  await after.recover();
  after.clock.advance(3_999);
  assert.equal(await status(after, id), "running");
  after.clock.advance(1);
  assert.equal(await status(after, id), "paused");
});

test("how long a capsule took to be let go of does not count", async () => {
  const service = fakeService();
  const id = await running(service, 10);
  await service.capsules.pause(service.team, id);
  const { host } = service;
  const release = host.release.bind(host);
  host.release = async (guest) => {
    service.clock.advance(9_000);
    await release(guest);
  };
  await service.capsules.resume(service.team, id);
  service.clock.advance(9_999);
  assert.equal(await status(service, id), "running");
  service.clock.advance(1);
  assert.equal(await status(service, id), "paused");
});

test("a changed TTL counts from the last activity: a shorter one pauses at once, 0 never", async () => {
  const service = fakeService();
  const { capsules, team, clock } = service;
  const id = await running(service, 100);
  clock.advance(50_000);
  capsules.update(team, id, { timeoutSec: 0 });
  clock.advance(1_000_000);
  assert.equal(await status(service, id), "running");
  capsules.update(team, id, { timeoutSec: 20 });
  clock.advance(19_999);
  assert.equal(await status(service, id), "running");
  capsules.update(team, id, { timeoutSec: 30 });
  clock.advance(9_999);
  assert.equal(await status(service, id), "running");
  capsules.update(team, id, { timeoutSec: 10 });
  clock.advance(0);
  assert.equal(await status(service, id), "paused");
});

test("a TTL that is changed while the guest is released, or during a pause that fails, holds", async () => {
  const service = fakeService();
  const { capsules, team, clock, host } = service;
  const id = await running(service, 100);
  await capsules.pause(team, id);
  host.before = (verb) => {
    if (verb === "release") capsules.update(team, id, { timeoutSec: 10 });
  };
  await capsules.resume(team, id);
  await service.settled();
  host.before = (verb) => {
    if (verb !== "save") return;
    capsules.update(team, id, { timeoutSec: 40 });
    throw new Error("no room");
  };
  clock.advance(10_000);
  await service.settled();
  assert.equal(await status(service, id), "running", "its pause after 10 s has failed");
  host.before = () => {};
  clock.advance(29_999);
  assert.equal(await status(service, id), "running");
  clock.advance(1);
  assert.equal(await status(service, id), "paused");
});
