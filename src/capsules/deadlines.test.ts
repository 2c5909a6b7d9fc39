import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { waitFor } from "../../test/wait-for.ts";
import { soonestQuery } from "../db/deadline-rows.ts";
import type { CapsuleStatus } from "../wire/capsule.ts";
import type { PolicyChange } from "./settings.ts";

const hourMs = 3_600_000;

/** Lets the changes under way end. */
async function settle(service: FakeService): Promise<void> {
  await service.settled();
  await new Promise(setImmediate);
  await service.settled();
}

async function pass(service: FakeService, ms: number): Promise<void> {
  service.clock.advance(ms);
  await settle(service);
}

/** undefined: the capsule is gone. */
function statusOf({ capsules, team }: FakeService, id: string): CapsuleStatus | undefined {
  return capsules.list(team).find((view) => view.id === id)?.status;
}

function expiresAt({ capsules, team }: FakeService, id: string): number | null {
  return capsules.get(team, id).expiresAt;
}

/** The service's own audit entries, oldest first. */
function entries({ audit, team }: FakeService): string[] {
  audit.flush();
  return audit
    .list(team, { limit: 1_000 })
    .entries.filter(({ keyId }) => keyId === "")
    .map(({ action, subject, status }) => `${action} ${subject} ${status}`)
    .reverse();
}

/** The next life of the daemon, which began `awayMs` after the end of `before`. */
async function restarted(before: FakeService, awayMs = 0): Promise<FakeService> {
  await before.capsules.close(0);
  before.activity.flush();
  before.clock.advance(awayMs);
  const { host, database, clock } = before;
  const after = fakeService({ host, database, clock });
  await after.recover();
  await settle(after);
  return after;
}

test("a lifetime destroys by default, and pauses where the capsule says so", async () => {
  for (const onExpiry of [undefined, "destroy", "pause"] as const) {
    const service = fakeService();
    const gone: string[] = [];
    service.capsules.onChange((_team, id, view) => view === undefined && gone.push(id));
    const id = await running(service, 0, { lifetimeSec: 60, onExpiry });
    assert.equal(expiresAt(service, id), service.clock.now() + 60_000);
    await pass(service, 59_000);
    assert.equal(statusOf(service, id), "running");
    await pass(service, 1_000);
    assert.equal(statusOf(service, id), onExpiry === "pause" ? "paused" : undefined);
    assert.deepEqual(gone, onExpiry === "pause" ? [] : [id], "as an event");
    assert.deepEqual(entries(service), [
      onExpiry === "pause" ? "capsule.pause lifetime 200" : "capsule.destroy lifetime 204",
    ]);
    assert.equal(service.host.guests.size, 0);
  }
});

test("neither a command nor a ping moves the end of a lifetime, or holds it off", async () => {
  const service = fakeService();
  const id = await running(service, 0, { lifetimeSec: 60, onExpiry: "pause" });
  const end = expiresAt(service, id);
  const ended = beginExec(service, id);
  await pass(service, 59_000);
  service.capsules.ping(service.team, id);
  assert.equal(expiresAt(service, id), end);
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), "paused");
  await ended();
});

test("a lifetime begins with each run, and is shown while the capsule runs", async () => {
  const service = fakeService();
  const { capsules, team, clock } = service;
  const made = await capsules.create(team, {
    ...{ template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 },
    ...{ lifetimeSec: 60 },
  });
  assert.deepEqual([made.status, made.lifetimeSec, made.expiresAt], ["starting", 60, null]);
  await service.settled();
  assert.equal(expiresAt(service, made.id), clock.now() + 60_000);
  await pass(service, 30_000);
  assert.equal((await capsules.pause(team, made.id)).expiresAt, null);
  await pass(service, 10 * hourMs);
  const resumed = await capsules.resume(team, made.id);
  assert.equal(resumed.expiresAt, clock.now() + 60_000);
  await pass(service, 60_000);
  assert.equal(statusOf(service, made.id), undefined);
});

test("a PATCH counts from now on a running capsule, and sets the value of the next run of another one", async () => {
  const service = fakeService();
  const { capsules, team, clock } = service;
  const id = await running(service, 0, { lifetimeSec: 60 });
  await pass(service, 50_000);
  assert.equal((await capsules.update(team, id, { lifetimeSec: 100 })).expiresAt, clock.now() + 100_000);
  await pass(service, 50_000);
  assert.equal((await capsules.update(team, id, { name: "web" })).expiresAt, clock.now() + 50_000, "another field");
  assert.equal((await capsules.update(team, id, { lifetimeSec: 0 })).expiresAt, null);
  await pass(service, hourMs);
  assert.equal(statusOf(service, id), "running");
  await capsules.pause(team, id);
  assert.equal((await capsules.update(team, id, { lifetimeSec: 30 })).expiresAt, null);
  await pass(service, hourMs);
  assert.equal((await capsules.resume(team, id)).expiresAt, clock.now() + 30_000);
  await pass(service, 30_000);
  assert.equal(statusOf(service, id), undefined);
});

test("a lifetime that is changed while the capsule starts or resumes holds for that run", async () => {
  const service = fakeService();
  const { capsules, team, clock, host } = service;
  const change = (verb: string, lifetimeSec: number) => {
    host.before = (reached, id) => {
      if (reached === verb) capsules.update(team, id, { lifetimeSec });
    };
  };
  change("start", 60);
  const id = await running(service, 0, { lifetimeSec: 10 });
  assert.equal(expiresAt(service, id), clock.now() + 60_000);
  await capsules.pause(team, id);
  change("restore", 90);
  await capsules.resume(team, id);
  assert.equal(expiresAt(service, id), clock.now() + 90_000);
  change("save", 120);
  assert.equal((await capsules.pause(team, id)).expiresAt, null);
  host.before = () => {};
  assert.equal((await capsules.resume(team, id)).expiresAt, clock.now() + 120_000);
});

test("inactivity destroys where the capsule says so", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  const id = await running(service, 10, { onTimeout: "destroy" });
  const patched = await running(service, 10);
  capsules.update(team, patched, { onTimeout: "destroy" });
  const kept = await running(service, 10, { onTimeout: "destroy" });
  capsules.update(team, kept, { onTimeout: "pause" });
  await pass(service, 10_000);
  assert.deepEqual(
    [id, patched, kept].map((each) => statusOf(service, each)),
    [undefined, undefined, "paused"],
  );
  assert.deepEqual(entries(service).sort(), [
    "capsule.destroy inactivity 204",
    "capsule.destroy inactivity 204",
    "capsule.pause null 200",
  ]);
});

test("a retention destroys what is paused, stopped or in error, counted from its last change of status", async () => {
  const leave = {
    paused: ({ capsules, team }: FakeService, id: string) => capsules.pause(team, id),
    stopped: ({ host }: FakeService, id: string) =>
      host.guests.get(id)?.endWith({ kind: "powered_off", reason: "off" }),
    error: ({ host }: FakeService, id: string) => host.guests.get(id)?.endWith({ kind: "lost", reason: "shot" }),
  };
  for (const status of ["paused", "stopped", "error"] as const) {
    const service = fakeService();
    const id = await running(service, 0, { retentionSec: 600 });
    await pass(service, hourMs);
    assert.equal(statusOf(service, id), "running", "it does not count while the capsule runs");
    await leave[status](service, id);
    await settle(service);
    assert.equal(statusOf(service, id), status);
    await pass(service, 300_000);
    service.capsules.update(service.team, id, { labels: { a: "b" } });
    await pass(service, 299_000);
    assert.equal(statusOf(service, id), status);
    await pass(service, 1_000);
    assert.equal(statusOf(service, id), undefined);
    assert.equal(entries(service).at(-1), "capsule.destroy retention 204");
    assert.equal(service.host.folders.size, 0, "nothing is left of it");
  }
});

test("a resume takes the retention away, and a change of it acts at once", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  const id = await running(service, 0, { retentionSec: 60 });
  await capsules.pause(team, id);
  await pass(service, 59_000);
  await capsules.resume(team, id);
  await pass(service, hourMs);
  assert.equal(statusOf(service, id), "running");
  await capsules.pause(team, id);
  capsules.update(team, id, { retentionSec: 0 });
  await pass(service, hourMs);
  assert.equal(statusOf(service, id), "paused");
  capsules.update(team, id, { retentionSec: 3_599 });
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), undefined);
});

test("after a step of the clock by more than an hour, what destroys waits a minute", async () => {
  const service = fakeService();
  const { capsules, team, clock } = service;
  const dying = await running(service, 0, { lifetimeSec: 86_400 });
  const pausing = await running(service, 0, { lifetimeSec: 86_400, onExpiry: "pause" });
  const idle = await running(service, 20, { onTimeout: "destroy" });
  const kept = await running(service, 0, { retentionSec: 86_400 });
  await capsules.pause(team, kept);
  await pass(service, 1_000);
  clock.step(3 * 86_400_000);
  await pass(service, 1_000);
  assert.deepEqual(
    [dying, pausing, kept].map((id) => statusOf(service, id)),
    ["running", "paused", "paused"],
  );
  for (let second = 0; second < 58; second++) await pass(service, 1_000);
  assert.deepEqual(
    [dying, idle, kept].map((id) => statusOf(service, id)),
    ["running", "running", "paused"],
  );
  clock.step(-3 * 86_400_000); // set right: the minute begins anew, and nothing is due
  for (let second = 0; second < 120; second++) await pass(service, 1_000);
  assert.deepEqual(
    [dying, idle, kept].map((id) => statusOf(service, id)),
    ["running", undefined, "paused"],
  );
  clock.step(3 * 86_400_000);
  for (let second = 0; second < 62; second++) await pass(service, 1_000);
  assert.deepEqual(
    [dying, kept].map((id) => statusOf(service, id)),
    [undefined, undefined],
  );
});

test("deadlines stay where they are when the clock is set", async () => {
  const service = fakeService();
  const id = await running(service, 0, { lifetimeSec: 7_200 });
  const end = expiresAt(service, id);
  await pass(service, 1_000);
  service.clock.step(-hourMs + 1_000);
  await pass(service, 7_200_000);
  assert.deepEqual([statusOf(service, id), expiresAt(service, id)], ["running", end]);
  service.clock.step(hourMs - 1_000); // not by more than an hour, so nothing waits
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), undefined);
});

test("deadlines that passed while the server was away act at its start, in the order of the times", async () => {
  const before = fakeService();
  const { capsules, team } = before;
  const names = new Map<string, string>();
  const add = async (name: string, timeoutSec: number, policies: PolicyChange) => {
    const id = await running(before, timeoutSec, policies);
    names.set(id, name);
    return id;
  };
  await add("lifetime 50", 0, { lifetimeSec: 50 });
  await add("idle 40, then lifetime", 40, { lifetimeSec: 60 });
  await add("lifetime 30, then idle", 70, { lifetimeSec: 30 });
  await add("idle 20", 20, { onTimeout: "destroy", lifetimeSec: 90 });
  await capsules.pause(team, await add("retention 10", 0, { retentionSec: 10 }));
  await add("not yet", 500, { lifetimeSec: 500, retentionSec: 10 });
  const order: string[] = [];
  await capsules.close(0);
  before.activity.flush();
  before.clock.advance(100_000);
  const { host, database, clock } = before;
  const after = fakeService({ host, database, clock });
  after.store.subscribe((_team, id, row) => {
    if (row === undefined || row.status === "paused") order.push(`${names.get(id)}: ${row?.status}`);
  });
  await after.recover();
  await settle(after);
  assert.deepEqual(order, [
    "retention 10: undefined",
    "idle 20: undefined",
    "lifetime 30, then idle: undefined",
    "lifetime 50: undefined",
    "idle 40, then lifetime: paused", // begun before the one above, and answered when it is saved
  ]);
  assert.deepEqual(
    after.capsules.list(team).map(({ id }) => names.get(id)),
    ["not yet", "idle 40, then lifetime"],
  );
  await pass(after, 500_000); // inactivity goes before a lifetime of the same end
  await pass(after, 10_000);
  assert.deepEqual(after.capsules.list(team).length, 1);
});

test("a lifetime counts through a restart of the server", async () => {
  const before = fakeService();
  const id = await running(before, 0, { lifetimeSec: 100 });
  const end = expiresAt(before, id);
  const after = await restarted(before, 50_000);
  assert.deepEqual([statusOf(after, id), expiresAt(after, id)], ["running", end]);
  await pass(after, 49_000);
  assert.equal(statusOf(after, id), "running");
  await pass(after, 1_000);
  assert.equal(statusOf(after, id), undefined);
});

test("a pause or a destroy that fails is tried again after half a minute", async () => {
  const service = fakeService();
  const id = await running(service, 0, { lifetimeSec: 60, onExpiry: "pause", retentionSec: 60 });
  service.host.before = (verb) => {
    if (verb === "save") throw new Error("busy");
  };
  await pass(service, 60_000);
  assert.equal(statusOf(service, id), "running");
  service.host.before = () => {};
  await pass(service, 29_000);
  assert.equal(statusOf(service, id), "running");
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), "paused");
  service.capsuleRows.beginDestroy = () => {
    throw new Error("database or disk is full");
  };
  await pass(service, 60_000);
  assert.equal(statusOf(service, id), "paused");
  Reflect.deleteProperty(service.capsuleRows, "beginDestroy");
  await pass(service, 29_000);
  assert.equal(statusOf(service, id), "paused");
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), undefined);
});

test("a deadline waits for the change under way", async () => {
  const service = fakeService();
  const { capsules, team, host } = service;
  const id = await running(service, 0, { lifetimeSec: 60 });
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  const pausing = capsules.pause(team, id);
  service.clock.advance(60_000);
  service.clock.advance(1_000);
  assert.equal(statusOf(service, id), "running");
  saving.resolve();
  assert.equal((await pausing).status, "paused");
  await pass(service, hourMs);
  assert.equal(statusOf(service, id), "paused", "a paused capsule has no lifetime");

  const failing = await running(service, 0, { lifetimeSec: 60 });
  host.before = (verb) => {
    if (verb !== "save") return;
    service.clock.advance(60_000);
    throw new Error("busy");
  };
  await assert.rejects(capsules.pause(team, failing));
  await pass(service, 1_000);
  assert.equal(statusOf(service, failing), undefined, "once the pause has failed");
});

test("a capsule that is being destroyed has no deadline", async () => {
  const service = fakeService();
  const { capsules, team, deadlineRows } = service;
  const id = await running(service, 0, { lifetimeSec: 60 });
  assert.deepEqual(
    deadlineRows.soonest(10).map(({ dueAt }) => dueAt),
    [expiresAt(service, id)],
  );
  const destroying = capsules.destroy(team, id);
  assert.deepEqual(deadlineRows.soonest(10), []);
  service.clock.advance(60_000);
  await destroying;
  await settle(service);
  assert.deepEqual(entries(service), []);
});

test("10 000 deadlines cost a statement when one is due, none before, and one timer a second", async () => {
  const service = fakeService({ quotas: { capsules: 20_000 } });
  const { clock, database, capsuleRows, deadlineRows, team } = service;
  const id = await running(service, 0, { lifetimeSec: 100 });
  const row = capsuleRows.get(id)!;
  for (let each = 0; each < 10_000; each++)
    capsuleRows.insert({ ...row, id: `cl-${each}`, status: "paused", retentionSec: 1_000 + each });
  let reads = 0;
  let timers = 0;
  const soonest = deadlineRows.soonest.bind(deadlineRows);
  deadlineRows.soonest = (...bounds) => {
    reads++;
    return soonest(...bounds);
  };
  const after = clock.after.bind(clock);
  clock.after = (ms, callback) => {
    timers++;
    assert.ok(ms >= 1_000, `${ms}`);
    return after(ms, callback);
  };
  for (let second = 1; second < 100; second++) await pass(service, 1_000);
  assert.deepEqual([reads, timers], [1, 99], "the first look finds the next time");
  await pass(service, 1_000);
  assert.equal(statusOf(service, id), undefined);
  assert.ok(reads <= 3, `${reads}`);
  service.capsules.list(team);
  const plan = database.prepare(`EXPLAIN QUERY PLAN ${soonestQuery}`).all(1, 1);
  assert.match(JSON.stringify(plan), /capsules_by_deadline/);
  assert.doesNotMatch(JSON.stringify(plan), /TEMP B-TREE/);
});

test("a team whose pauses take long holds up no other team's deadlines, at a start neither", async () => {
  for (const isStart of [false, true]) {
    const service = fakeService();
    const theirs = { ...service, team: service.other };
    for (let count = 0; count < 40; count++) await running(service, 0, { lifetimeSec: 60, onExpiry: "pause" });
    const id = await running(theirs, 0, { lifetimeSec: 61 });
    const saves: (() => void)[] = [];
    service.host.before = (verb) => {
      if (verb === "save") return new Promise<void>((resolve) => void saves.push(resolve));
    };
    let next = service;
    if (isStart) {
      await service.capsules.close(0);
      service.clock.advance(61_000);
      const { host, database, clock } = service;
      next = fakeService({ host, database, clock });
      await next.recover();
    } else {
      service.clock.advance(60_000);
      service.clock.advance(1_000);
    }
    await waitFor(
      "the other team's capsule is gone",
      () => statusOf({ ...next, team: service.other }, id) === undefined,
    );
    assert.equal(saves.length, 16, `of the first team, at a start: ${isStart}`);
    service.host.before = () => {};
    for (const save of saves) save();
    await settle(next);
  }
});

test("a service whose capsules have no deadline arms no timer", async () => {
  const service = fakeService();
  await running(service, 0, { onExpiry: "pause" });
  service.clock.advance(1_000); // the first look
  let timers = 0;
  service.clock.after = () => {
    timers++;
    return () => {};
  };
  await running(service);
  service.clock.advance(100_000);
  assert.equal(timers, 0);
});

test("a reboot of the guest neither stops nor restarts a lifetime", async () => {
  const service = fakeService();
  const { capsules, team, host, clock } = service;
  const id = await running(service, 0, { lifetimeSec: 60 });
  const end = expiresAt(service, id);
  await pass(service, 20_000);
  const shown: (number | null)[] = [];
  capsules.onChange((_team, _id, view) => view?.status === "starting" && shown.push(view.expiresAt));
  const startedAt = capsules.get(team, id).startedAt;
  host.guests.get(id)?.endWith({ kind: "reset", reason: "reboot" });
  await settle(service);
  assert.deepEqual(shown, [null], "it is not shown meanwhile");
  assert.notEqual(capsules.get(team, id).startedAt, startedAt);
  assert.deepEqual([statusOf(service, id), expiresAt(service, id)], ["running", end]);
  await pass(service, 40_000);
  assert.equal(statusOf(service, id), undefined);

  const changed = await running(service, 0, { lifetimeSec: 60 });
  host.before = (verb) => {
    if (verb === "boot") capsules.update(team, changed, { lifetimeSec: 100 });
  };
  host.guests.get(changed)?.endWith({ kind: "reset", reason: "reboot" });
  await settle(service);
  assert.equal(expiresAt(service, changed), clock.now() + 100_000, "a PATCH meanwhile counts from the next run");
});

test("a lifetime ends with a stop, and begins anew with a start, which takes the retention away", async () => {
  const service = fakeService();
  const { capsules, team, clock } = service;
  const id = await running(service, 0, { lifetimeSec: 60, retentionSec: 100 });
  await pass(service, 50_000);
  assert.equal((await capsules.stop(team, id)).expiresAt, null);
  await pass(service, 99_000);
  const started = await capsules.start(team, id);
  assert.deepEqual([started.status, started.expiresAt], ["running", clock.now() + 60_000]);
  await pass(service, 59_000);
  assert.equal(statusOf(service, id), "running");
  await capsules.stop(team, id);
  await pass(service, 100_000);
  assert.equal(statusOf(service, id), undefined);
});
