/** Which teams' writes are throttled, when the disk is measured, and what guests and uploads notice of it. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
import { FakeGuest } from "../../test/fakes/fake-host.ts";
import { DiskLimiter, throttledTeams } from "./disk-limiter.ts";

const quotaBytes = 1_000;
const reserveBytes = 400;
const ample = 10_000;
const throttled = 16_384;

describe("the teams to throttle", () => {
  const uses = new Map([
    ["large", 900],
    ["middle", 500],
    ["small", 100],
  ]);
  const decide = (freeBytes: number, { wasLow = false, over = 0 } = {}) => {
    const state = { freeBytes, reserveBytes, quotaBytes, wasLow };
    const { teams, isLow } = throttledTeams({ ...state, uses: new Map(uses).set("large", 900 + over) });
    return [[...teams].map(([team, why]) => `${team}: ${why}`).join(", "), isLow];
  };

  for (const [what, found, expected] of [
    ["none while there is room", decide(ample), ["", false]],
    ["none at the quota and at the reserve", decide(reserveBytes, { over: 100 }), ["", false]],
    ["a team over its quota", decide(ample, { over: 101 }), ["large: quota", false]],
    ["those at the mean or above it, below the reserve", decide(399), ["large: reserve, middle: reserve", true]],
    ["all, below half the reserve", decide(199), ["large: reserve, middle: reserve, small: reserve", true]],
    ["for the quota first", decide(399, { over: 101 }), ["large: quota", true]],
    ["the same until a quarter more is free", decide(499, { wasLow: true }), ["large: reserve, middle: reserve", true]],
    ["none again when it is", decide(500, { wasLow: true }), ["", false]],
  ] as const) {
    test(what, () => assert.deepEqual(found, expected));
  }

  test("none without running capsules, and none for the reserve when there is no reserve", () => {
    const empty = { reserveBytes, quotaBytes, freeBytes: 0, wasLow: false, uses: new Map() };
    assert.equal(throttledTeams(empty).teams.size, 0);
    const without = { ...empty, uses, reserveBytes: 0 };
    assert.deepEqual(throttledTeams(without), { isLow: false, teams: new Map() });
  });
});

/** Two teams with a running capsule each; team `a` uses what the test says. */
function build(disk = { reserveBytes, freeBytes: ample }) {
  const clock = new FakeClock();
  const guests = { a: new FakeGuest("cl-a"), b: new FakeGuest("cl-b") };
  const state = {
    freeBytes: disk.freeBytes,
    used: { a: 10, b: 10 } as Record<string, number>,
    measured: 0,
    reclaimable: [] as number[],
  };
  const running: FakeGuest[] = [guests.a, guests.b];
  const changes: unknown[][] = [];
  const warnings: unknown[] = [];
  const teamOf = (id: string) => id.slice("cl-".length, "cl-".length + 1);
  const limiter = new DiskLimiter({
    rows: { teams: () => new Map(running.map(({ id }) => [id, teamOf(id)])) },
    guests: () => running,
    diskUse: { measure: async () => void state.measured++ },
    usedBytes: (teamId) => state.used[teamId]!,
    quotaBytes,
    space: {
      reserveBytes: disk.reserveBytes,
      get freeBytes() {
        return state.freeBytes;
      },
      reclaim: async () => {
        const bytes = state.reclaimable.shift();
        state.freeBytes += bytes ?? 0;
        return bytes !== undefined;
      },
    },
    clock,
    onChange: (...change) => changes.push(change),
    log: { info() {}, warn: (about) => warnings.push(about), error() {} },
  });
  /** Checks, as every second, until the guests' limits are set. */
  const check = async (times = 1) => {
    for (let left = times; left > 0; left--) {
      await limiter.check();
      await setImmediate();
      clock.advance(1_000);
    }
  };
  return { limiter, state, guests, running, changes, warnings, check };
}

const isRefused = { code: "no_space" };

test("below the reserve, what is kept only while there is room goes before anybody is throttled", async () => {
  const { state, changes, check } = build({ reserveBytes: 100, freeBytes: 60 });
  state.reclaimable.push(30, 30, 30);
  await check();
  assert.deepEqual([state.freeBytes, state.reclaimable.length, changes], [120, 1, []]);
});

test("a team over its quota is throttled until it is under it again; other teams notice nothing", async () => {
  const { limiter, state, guests, changes, check } = build();
  await check();
  state.used.a = 1_001;
  await check(60);
  assert.deepEqual(guests.a.writeLimits, [0, throttled], "the limit of an earlier daemon is taken away first");
  assert.throws(() => limiter.requireWritable("a"), {
    ...isRefused,
    message: /over its disk quota/,
    details: { shortage: "quota" },
  });
  limiter.requireWritable("b");
  state.used.a = 1_000;
  await check(5);
  assert.deepEqual(guests.a.writeLimits, [0, throttled, 0]);
  limiter.requireWritable("a");
  assert.deepEqual(guests.b.writeLimits, [0]);
  assert.deepEqual(changes, [
    ["a", "quota"],
    ["a", undefined],
  ]);
});

test("a capsule that starts while its team is throttled is throttled at the next check", async () => {
  const { state, running, check } = build();
  state.used.a = 1_001;
  await check();
  const later = new FakeGuest("cl-a2");
  const ofOther = new FakeGuest("cl-b2");
  running.push(later, ofOther);
  await check();
  assert.deepEqual([later.writeLimits, ofOther.writeLimits], [[throttled], []]);
});

test("a team over its quota that pauses its last capsule is throttled before the processes of the next one run", async () => {
  const { limiter, state, guests, running, changes, check } = build();
  state.used.a = 1_001;
  await check();
  running.splice(running.indexOf(guests.a), 1);
  await check(2);
  const resumed = new FakeGuest("cl-a");
  running.push(resumed);
  await limiter.beforeRun("a", resumed);
  assert.deepEqual(resumed.writeLimits, [throttled]);
  await limiter.beforeRun("b", guests.b);
  assert.deepEqual(guests.b.writeLimits, [0]);
  await check();
  assert.deepEqual(resumed.writeLimits, [throttled]);
  assert.deepEqual(changes, [
    ["a", "quota"],
    ["a", undefined],
    ["a", "quota"],
  ]);
  assert.equal(state.measured, 1, "by what was measured before");
});

test("a capsule that starts in a team without a running one is throttled at the first check", async () => {
  const { limiter, state, guests, running, check } = build();
  state.used.a = 1_001;
  running.splice(running.indexOf(guests.a), 1);
  await check();
  running.push(guests.a);
  await limiter.beforeRun("a", guests.a);
  await check();
  assert.deepEqual([guests.a.writeLimits, state.measured], [[throttled], 1]);
});

test("without a reserve capsules are measured after 256 MiB", async () => {
  const { state, check } = build({ reserveBytes: 0, freeBytes: 2 ** 40 });
  await check();
  state.freeBytes -= (256 << 20) - 1;
  await check();
  assert.equal(state.measured, 1);
  state.freeBytes -= 1;
  await check();
  assert.equal(state.measured, 2);
});

test("below the reserve no files are accepted and the largest team is throttled, without a measurement", async () => {
  const { limiter, state, guests, check } = build();
  state.used.a = 900;
  await check();
  state.freeBytes = 390;
  await check();
  assert.deepEqual([guests.a.writeLimits.at(-1), guests.b.writeLimits.at(-1)], [throttled, 0]);
  for (const team of ["a", "b"])
    assert.throws(() => limiter.requireWritable(team), {
      ...isRefused,
      message: /pauses/,
      details: { shortage: "reserve" },
    });
  state.freeBytes = 190;
  await check();
  assert.equal(guests.b.writeLimits.at(-1), throttled);
  state.freeBytes = ample;
  await check();
  assert.deepEqual([guests.a.writeLimits.at(-1), guests.b.writeLimits.at(-1)], [0, 0]);
});

test("capsules are measured each minute, each 5 s while a team is throttled, and after a quarter of the reserve", async () => {
  const { state, check } = build();
  await check(60);
  assert.equal(state.measured, 1);
  state.freeBytes -= 99;
  await check(60);
  assert.equal(state.measured, 2);
  state.freeBytes -= 100;
  await check();
  assert.equal(state.measured, 3);
  state.used.a = 1_001;
  await check(60);
  state.measured = 0;
  await check(10);
  assert.equal(state.measured, 2);
});

test("a guest that does not answer delays no other, and one that fails is asked again", async () => {
  const { state, guests, running, warnings, check } = build();
  await check();
  const hangs = Promise.withResolvers<void>();
  guests.a.limiting = () => hangs.promise;
  const second = new FakeGuest("cl-a2");
  let failures = 2;
  second.limiting = async () => {
    if (failures-- > 0) throw new Error("its monitor is closed");
  };
  running.push(second);
  state.used.a = 1_001;
  await check(60);
  assert.deepEqual([guests.a.writeLimits, second.writeLimits], [[0], [throttled]]);
  assert.equal(warnings.length, 2);
  state.used.a = 10;
  await check(5);
  assert.deepEqual(second.writeLimits, [throttled, 0]);
  hangs.resolve();
  await check(2);
  assert.deepEqual(guests.a.writeLimits, [0, throttled, 0], "the limit that came too late is taken away");
});
