import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, buildFloors, running } from "../../test/fakes/floors.ts";

const status = async (floors: ReturnType<typeof buildFloors>, id: string) => {
  await floors.settled();
  return floors.capsules.get(floors.team, id).status;
};

test("an idle capsule is paused at its TTL, counted from the moment it began to run", async () => {
  const floors = buildFloors();
  const id = await running(floors, 10);
  floors.clock.advance(9_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
});

test("a TTL of 0 never pauses", async () => {
  const floors = buildFloors();
  const id = await running(floors, 0);
  floors.clock.advance(10 ** 12);
  assert.equal(await status(floors, id), "running");
});

test("exec and ping push the pause back; the clock runs anew after a resume", async () => {
  const floors = buildFloors();
  const id = await running(floors, 10);
  floors.clock.advance(8_000);
  floors.capsules.ping(floors.team, id);
  floors.clock.advance(8_000);
  await beginExec(floors, id)();
  floors.clock.advance(9_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
  await floors.capsules.resume(floors.team, id);
  floors.clock.advance(9_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
});

test("a command in flight holds the pause off until its end, and then the whole TTL runs", async () => {
  const floors = buildFloors();
  const id = await running(floors, 3);
  const ended = [beginExec(floors, id), beginExec(floors, id)];
  floors.clock.advance(8_000);
  await ended[0]!();
  floors.clock.advance(8_000);
  assert.equal(await status(floors, id), "running");
  await ended[1]!();
  floors.clock.advance(2_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
});

test("an automatic pause that fails is tried again after half a minute", async () => {
  const floors = buildFloors();
  for (const ttlSec of [3, 3_600]) {
    const id = await running(floors, ttlSec);
    floors.host.before = (verb) => {
      if (verb === "save") throw new Error("busy");
    };
    floors.clock.advance(ttlSec * 1_000);
    assert.equal(await status(floors, id), "running");
    floors.host.before = () => {};
    floors.clock.advance(29_000);
    assert.equal(await status(floors, id), "running", "not at once");
    floors.clock.advance(1_000);
    assert.equal(await status(floors, id), "paused", "nor after a whole TTL");
  }
});

test("last_active_at is null until the first exec or ping, and survives a restart once flushed", async () => {
  const floors = buildFloors();
  const id = await running(floors, 3);
  assert.equal(floors.capsules.get(floors.team, id).lastActiveAt, null);
  floors.clock.advance(1_000);
  floors.capsules.ping(floors.team, id);
  assert.equal(floors.capsules.get(floors.team, id).lastActiveAt, 1_001_000);
  floors.activity.flush();
  assert.equal(floors.capsuleRows.get(id)?.lastActiveAt, 1_001_000);
});

test("an automatic pause that cannot even be begun is tried again after half a minute", async () => {
  const floors = buildFloors();
  const id = await running(floors, 10);
  floors.capsuleRows.change = () => {
    throw new Error("database or disk is full");
  };
  floors.clock.advance(10_000);
  await floors.settled();
  Reflect.deleteProperty(floors.capsuleRows, "change");
  floors.clock.advance(29_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
});

test("the time without activity goes on while the server is away", async () => {
  const before = buildFloors();
  const id = await running(before, 10);
  before.clock.advance(6_000);
  await before.capsules.close(0);
  const after = buildFloors({ host: before.host, database: before.database, clock: before.clock });
  await after.recover();
  after.clock.advance(3_999);
  assert.equal(await status(after, id), "running");
  after.clock.advance(1);
  assert.equal(await status(after, id), "paused");
});

test("how long a capsule took to be let go of does not count", async () => {
  const floors = buildFloors();
  const id = await running(floors, 10);
  await floors.capsules.pause(floors.team, id);
  const { host } = floors;
  const release = host.release.bind(host);
  host.release = async (guest) => {
    floors.clock.advance(9_000);
    await release(guest);
  };
  await floors.capsules.resume(floors.team, id);
  floors.clock.advance(9_999);
  assert.equal(await status(floors, id), "running");
  floors.clock.advance(1);
  assert.equal(await status(floors, id), "paused");
});
