/** The watch on a fake host and clock, over real capsules; and its choice, as a function. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { waitFor } from "../../test/wait-for.ts";
import { FairSlots } from "../host/capacity/fair-slots.ts";
import { serviceOwner } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import { chooseToPause, MemoryWatch, type RunningCapsule } from "./memory-watch.ts";
import type { Capsule } from "./store.ts";

const gib = 2 ** 30;

function capsule(id: string, gibs: number): RunningCapsule {
  return { id, teamId: id.charAt(0), bytes: gibs * gib };
}
const none = new Set<string>();

test("the largest capsule of the team furthest over its share is chosen", () => {
  const running = [capsule("a1", 3), capsule("a2", 4), capsule("b1", 5), capsule("c1", 1)];
  assert.equal(chooseToPause(running, 12 * gib, none)?.id, "a2", "b1 is larger, but a has 7 and b 5, each over 4");
  assert.equal(chooseToPause(running, 12 * gib, new Set(["a2"]))?.id, "a1");
  assert.equal(chooseToPause(running, 12 * gib, new Set(["a1", "a2"]))?.id, "b1");
  assert.equal(chooseToPause(running, 12 * gib, new Set(["a1", "a2", "b1"])), undefined, "c does not pay for a and b");
  assert.equal(chooseToPause([], 12 * gib, none), undefined);
});

test("where no team is over its share, the largest of all is chosen", () => {
  const running = [capsule("a1", 3), capsule("a2", 3), capsule("b1", 4)];
  assert.equal(chooseToPause(running, 12 * gib, none)?.id, "b1");
  assert.equal(
    chooseToPause(running, -1, none)?.id,
    "a1",
    "a reserve larger than the machine puts all over their share",
  );
  const skipped = new Set(["b1", "a1", "a2"]);
  assert.equal(chooseToPause(running, 99 * gib, new Set(["b1"]))?.id, "a1");
  assert.equal(chooseToPause(running, 99 * gib, skipped), undefined);
});

/** A team with capsules of 1 and 2 GiB, another with one of 500 MiB, and a watch over a machine of 3 GiB. */
async function watched() {
  const outcomes: string[] = [];
  const errors: string[] = [];
  const service = fakeService({
    capacityBytes: 3 * gib,
    log: { info() {}, warn() {}, error: (_about, message) => errors.push(message) },
    observers: { onMemoryPause: (outcome) => outcomes.push(outcome) },
  });
  const state = { spare: 1, isStalling: false };
  const { host, capsules } = service;
  Object.assign(host.memory, { spareBytes: () => state.spare, isStalling: () => state.isStalling });
  const [small, large] = [await running(service), await running(service)];
  const { id: bystander } = await capsules.create(service.other, shape);
  await service.settled();
  for (const [id, bytes] of Object.entries({ [small]: gib, [large]: 2 * gib, [bystander]: gib / 2 })) {
    host.memories.set(id, bytes);
  }
  const stop = service.memoryWatch.start();
  return { service, state, outcomes, errors, small, large, bystander, stop };
}

type Watched = Awaited<ReturnType<typeof watched>>;

const shape = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

/** Seconds pass, and everything that begins in each of them ends in it. */
async function pass({ clock, settled }: FakeService, seconds: number): Promise<void> {
  for (let second = 0; second < seconds; second++) {
    clock.advance(1_000);
    await nextTurn(); // measuring and pausing are made of promises only
    await settled();
    for (let turn = 0; turn < 5; turn++) await nextTurn();
  }
}

function pausedIn({ store }: FakeService): string[] {
  return store
    .all()
    .filter(({ status }) => status === "paused")
    .map(({ id }) => id);
}

test("three readings below the reserve pause one capsule, with an entry of the service, and the count begins anew", async () => {
  const { service, state, outcomes, small, large, bystander } = await watched();
  state.spare = -1;
  await pass(service, 2);
  assert.deepEqual(pausedIn(service), []);
  await pass(service, 1);
  assert.deepEqual(pausedIn(service), [large]);
  await pass(service, 2);
  assert.deepEqual(pausedIn(service), [large], "the effect is waited for");
  const { entries } = service.audit.list(service.team, { limit: 10 });
  assert.deepEqual(
    entries.map(({ keyId, action, capsuleId, subject, status }) => [keyId, action, capsuleId, subject, status]),
    [["", "capsule.pause", large, "memory pressure", 200]],
  );
  state.spare = 0;
  await pass(service, 10);
  state.spare = -1;
  await pass(service, 2);
  assert.deepEqual(pausedIn(service), [large], "readings in a row");
  await pass(service, 1);
  assert.deepEqual(pausedIn(service).sort(), [small, large].sort());
  assert.deepEqual(outcomes, ["done", "done"]);
  assert.equal(service.store.get(bystander)?.status, "running");
});

test("while processes wait for memory, one reading is enough; waiting alone is none", async () => {
  const { service, state, large } = await watched();
  state.isStalling = true;
  await pass(service, 5);
  assert.deepEqual(pausedIn(service), []);
  state.spare = -1;
  await pass(service, 1);
  assert.deepEqual(pausedIn(service), [large]);
});

test("a pause that fails makes way for the next, and is tried again 30 s later", async () => {
  const { service, state, outcomes, small, large } = await watched();
  const { host } = service;
  let saves = 0;
  host.before = (verb, id) => {
    if (verb !== "save") return;
    saves++;
    assert.notEqual(id, large, "the disk is full");
  };
  state.spare = -1;
  await pass(service, 3);
  assert.deepEqual([pausedIn(service), saves, outcomes], [[small], 2, ["failed", "done"]]);
  assert.equal(service.store.get(large)?.status, "running");
  let tries = 0;
  host.before = (verb, id) => {
    if (verb === "save" && id === large) tries++;
    assert.notEqual(verb, "save");
  };
  await pass(service, 27);
  assert.equal(tries, 0);
  host.before = () => {};
  await pass(service, 6);
  assert.ok(pausedIn(service).includes(large));
});

/** Seconds pass while the host's work stands still. */
async function passStuck({ clock }: FakeService, seconds: number): Promise<void> {
  for (let second = 0; second < seconds; second++) {
    clock.advance(1_000);
    for (let turn = 0; turn < 5; turn++) await nextTurn();
  }
}

for (const change of ["capture", "pause", "destroy"] as const) {
  test(`the memory of a ${change} under way is waited for, 15 s; then the team pays that is over its share, and no other`, async () => {
    const { service, state, errors, small, large, bystander } = await watched();
    const { host, capsules, store, team } = service;
    const stuck = Promise.withResolvers<void>();
    host.moment = () => stuck.promise;
    const changed = {
      capture: () => capsules.capture(team, large, { storage: "t1", name: "t1", overwrites: false }, { commit() {} }),
      pause: () => capsules.pause(team, large),
      destroy: () => capsules.destroy(team, large),
    }[change]();
    state.spare = -1;
    await passStuck(service, 17);
    assert.deepEqual([store.get(small)?.intent, store.get(bystander)?.intent], [null, null]);
    await passStuck(service, 4);
    assert.equal(store.get(small)?.intent, "pause");
    await passStuck(service, 60);
    assert.equal(store.get(bystander)?.intent, null, "its team is within its share");
    assert.deepEqual(errors, ["the host is short of memory, and no capsule can be paused now"]);
    stuck.resolve();
    await changed;
    await service.settled();
    assert.ok(pausedIn(service).includes(small));
  });
}

/** Ways of a team over its share not to be paused: the disk has no space, or each resume holds the capsule's lock. */
const unpausable = {
  "fail with no_space": async ({ service: { host } }: Watched) => {
    host.before = (verb) => {
      if (verb === "save") throw new CapsuleError("no_space", "the disk has no space");
    };
  },
  "are impossible": async ({ service: { host, capsules, store, team }, small, large }: Watched) => {
    for (const id of [small, large]) await capsules.pause(team, id);
    host.isMute = true; // a guest that ignores THAW
    for (const id of [small, large]) void capsules.resume(team, id);
    await waitFor("both are released", () => [small, large].every((id) => store.get(id)?.status === "running"));
    host.isMute = false;
  },
};

for (const [title, prepare] of Object.entries(unpausable)) {
  test(`while the pauses of a team over its share ${title}, no other is paused, and after 30 s its largest VM is ended`, async () => {
    const world = await watched();
    const { service, state, outcomes, small, large, bystander } = world;
    const { store, capsules, team, other } = service;
    await prepare(world);
    const statuses: string[] = [];
    capsules.onChange((_team, id, view) => statuses.push(`${id} ${view?.status}`));
    state.spare = -1;
    await passStuck(service, 30);
    assert.deepEqual([store.get(large)?.status, store.get(small)?.status], ["running", "running"]);
    await passStuck(service, 4);
    const { status, errorReason } = store.get(large) ?? {};
    assert.equal(status, "error");
    assert.match(errorReason ?? "", /^the host was short of memory, .* could not be paused$/);
    assert.equal(service.host.guests.has(large), false);
    assert.ok(statuses.includes(`${large} error`));
    const [entry] = service.audit.list(team, { limit: 10, capsuleId: large }).entries;
    assert.deepEqual(
      [entry?.keyId, entry?.action, entry?.subject, entry?.status],
      ["", "capsule.end", errorReason, 500],
    );
    assert.equal(outcomes.filter((outcome) => outcome === "ended").length, 1);
    assert.equal(store.get(small)?.status, "running", "the effect is waited for");
    service.host.memories.set(small, 2 * gib);
    for (let second = 0; second < 34 && store.get(small)?.status !== "error"; second++) await passStuck(service, 1);
    assert.equal(store.get(small)?.status, "error");
    const { entries } = service.audit.list(other, { limit: 100, capsuleId: bystander });
    assert.deepEqual([store.get(bystander)?.status, entries], ["running", []]);
  });
}

test("resumes whose agents are waited for count for their team: no other is paused, and after 30 s the largest one fails", async () => {
  const { service, state, outcomes, small, large, bystander } = await watched();
  const { host, capsules, store, team, other } = service;
  for (const id of [small, large]) await capsules.pause(team, id);
  host.isHanging = true;
  const failed = assert.rejects(capsules.resume(team, large), { code: "no_capacity", message: /short of memory/ });
  const resuming = capsules.resume(team, small);
  state.spare = -1;
  await passStuck(service, 30);
  assert.deepEqual([store.get(large)?.intent, store.get(small)?.intent], ["resume", "resume"]);
  await passStuck(service, 4);
  await failed;
  const of = (id: string) => [store.get(id)?.status, store.get(id)?.intent];
  assert.deepEqual(
    [of(large), of(small)],
    [
      ["paused", null],
      ["paused", "resume"],
    ],
  );
  const { entries } = service.audit.list(other, { limit: 100, capsuleId: bystander });
  assert.deepEqual([store.get(bystander)?.status, entries, outcomes], ["running", [], ["ended"]]);
  state.spare = 1;
  host.stopHanging();
  assert.equal((await resuming).status, "running");
});

test("where a VM cannot be ended yet, the next largest of the teams over their share is ended in its place", async () => {
  const { clock } = fakeService();
  const sizes = { a1: gib, a2: 2 * gib, b1: gib / 2 };
  const asked: string[] = [];
  const outcomes: string[] = [];
  const watch = new MemoryWatch({
    host: {
      memory: { spareBytes: () => -1, isStalling: () => false },
      memoryByCapsule: async () => new Map(Object.entries(sizes)),
    },
    store: { get: (id) => ({ teamId: id.charAt(0) }) as Capsule },
    pause: async () => "refused",
    end(id) {
      asked.push(id);
      return id === "a1";
    },
    ...{ clock, capacityBytes: 3 * gib, log: { info() {}, warn() {}, error() {} } },
    onPause: (outcome) => outcomes.push(outcome),
  });
  const stop = watch.start();
  await passStuck({ clock } as FakeService, 34);
  stop();
  assert.deepEqual([asked, outcomes], [["a2", "a1"], ["ended"]]);
});

test("a save under way is given two minutes before its VM is ended", async () => {
  const { service, state, small, large, bystander } = await watched();
  const { host, store, capsules, team } = service;
  await capsules.destroy(team, small);
  host.saveLine = new FairSlots(1);
  const others = Promise.withResolvers<void>();
  const saving = host.saveLine.run("others", () => others.promise);
  state.spare = -1;
  await passStuck(service, 120);
  assert.equal(store.get(large)?.intent, "pause");
  await passStuck(service, 10);
  assert.equal(store.get(large)?.status, "error");
  assert.equal(store.get(bystander)?.status, "running");
  others.resolve();
  await saving;
});

test("a pause of the watch that takes longer than 15 s makes way for the next", async () => {
  const { service, state, small, large } = await watched();
  const stuck = Promise.withResolvers<void>();
  service.host.moment = () => stuck.promise;
  state.spare = -1;
  await passStuck(service, 17);
  assert.deepEqual([service.store.get(large)?.intent, service.store.get(small)?.intent], ["pause", null]);
  await passStuck(service, 2);
  assert.equal(service.store.get(small)?.intent, "pause");
  stuck.resolve();
  await service.settled();
});

test("a capsule that is destroyed while its pause waits has not failed, and no other is paused for it", async () => {
  const { service, state, outcomes, large } = await watched();
  const { host, capsules, store, team } = service;
  const others = Promise.withResolvers<void>();
  host.saveLine = new FairSlots(1);
  const saving = host.saveLine.run("others", () => others.promise);
  state.spare = -1;
  await passStuck(service, 3);
  assert.equal(store.get(large)?.intent, "pause");
  await capsules.destroy(team, large);
  await passStuck(service, 1);
  others.resolve();
  await saving;
  await service.settled();
  assert.deepEqual([outcomes, pausedIn(service), store.get(large)], [[], [], undefined]);
});

test("its pauses take a turn of the service's own among the saves", async () => {
  const { service, state } = await watched();
  const owners: string[] = [];
  const { host } = service;
  const save = host.save.bind(host);
  host.save = (guest, purpose, turn) => {
    owners.push(turn.owner);
    return save(guest, purpose, turn);
  };
  state.spare = -1;
  await pass(service, 3);
  assert.deepEqual(owners, [serviceOwner]);
});

test("that nothing is left to pause is logged once, until memory is short again", async () => {
  const { service, state, errors } = await watched();
  state.spare = -1;
  await pass(service, 60);
  assert.equal(pausedIn(service).length, 3);
  assert.deepEqual(errors, ["the host is short of memory, and no capsule can be paused now"]);
  state.spare = 0;
  await pass(service, 1);
  state.spare = -1;
  await pass(service, 10);
  assert.equal(errors.length, 2);
});

test("a stopped watch does nothing any more", async () => {
  const { service, state, stop } = await watched();
  state.spare = -1;
  await pass(service, 2);
  stop();
  await pass(service, 5);
  assert.deepEqual(pausedIn(service), []);
});
