/**
 * Random operations of several clients at once, on a host that takes random time and fails at random, with crashes of
 * the daemon in between; then rows, guests, checkpoints and folders must agree. All of it also where others decide who holds a capsule,
 * after a random time, who refuse at random or whose answers are lost.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { FakeHost, type HostVerb } from "../../test/fakes/fake-host.ts";
import { FakeOwnership } from "../../test/fakes/fake-ownership.ts";
import { type FakeService, fakeService } from "../../test/fakes/fake-service.ts";
import { openDatabase } from "../db/database.ts";
import { CapsuleError } from "../wire/errors.ts";
import { live } from "./lifecycle.ts";
import { singleHost } from "./ownership.ts";
import type { PolicyChange } from "./settings.ts";

const verbs = [
  ...(["create", "pause", "resume", "stop", "start", "destroy", "capture", "delete"] as const),
  ...(["lose", "off", "reset", "look", "idle", "set", "jump", "use", "name"] as const),
] as const;
type Operation = { verb: (typeof verbs)[number]; pick: number };

const operation = fc.record({ verb: fc.constantFrom(...verbs), pick: fc.nat(1_000) });
const client = fc.array(operation, { maxLength: 12 });
const scenario = fc.record({
  clients: fc.array(client, { minLength: 1, maxLength: 4 }),
  delays: fc.array(fc.nat(4), { minLength: 1, maxLength: 20 }),
  failures: fc.array(fc.boolean(), { minLength: 1, maxLength: 20 }),
});
/** Decisions about ownership: made, refused, or made with their answers lost. */
const outcomes = fc.array(fc.constantFrom("made", "made", "refused", "lost"), { minLength: 1, maxLength: 20 });

/** Codes that a client may meet; anything else is a bug. */
const expected = new Set([
  ...["not_found", "invalid_state", "agent_error", "conflict", "template_name_taken", "no_space"],
  ...["name_taken", "unavailable"],
]);

const failing: HostVerb[] = ["start", "restore", "boot", "save", "unsave", "capture", "release"];

function interfere(host: FakeHost, delays: number[], failures: boolean[]): void {
  let turn = 0;
  host.moment = async () => {
    for (let left = delays[turn++ % delays.length]!; left > 0; left--) await new Promise(setImmediate);
  };
  host.before = (verb, id) => {
    if (!failing.includes(verb) || !failures[turn++ % failures.length]) return;
    // A guest that cannot be set running again, or released, is lost: the real host says so by `ended`.
    if (verb === "unsave" || verb === "release") host.guests.get(id)?.endWith({ kind: "lost", reason: verb });
    throw new CapsuleError(turn % 3 === 0 ? "no_space" : "agent_error", `${verb} failed`);
  };
}

function decide(ownership: FakeOwnership, host: FakeHost, decisions: string[]): void {
  let turn = 0;
  const lost = new Set<string>();
  const fail = () => {
    throw new CapsuleError("unavailable", "nobody decides");
  };
  ownership.moment = () => host.moment();
  ownership.refuse = (verb, id) => {
    const outcome = decisions[turn++ % decisions.length];
    if (outcome === "refused") fail();
    if (outcome === "lost") lost.add(`${verb} ${id}`);
  };
  ownership.lose = (verb, id) => {
    if (lost.delete(`${verb} ${id}`)) fail();
  };
}

/** The deadlines of some capsules pass within three seconds of the clock. */
function policiesBy(pick: number): PolicyChange {
  const action = (bit: number) => ((pick >> bit) % 2 === 0 ? "pause" : "destroy");
  const seconds = (bit: number) => ((pick >> bit) % 4 === 0 ? (pick % 3) + 1 : 0);
  return {
    onTimeout: action(2),
    lifetimeSec: seconds(3),
    onExpiry: action(5),
    retentionSec: seconds(6),
    autoResume: (pick >> 7) % 2 === 0,
  };
}

async function perform(
  { verb, pick }: Operation,
  service: FakeService,
  ids: string[],
  destroyed: Set<string>,
): Promise<void> {
  const { capsules, templates, team, host, clock } = service;
  const id = ids.length === 0 ? "cl-none" : ids[pick % ids.length]!;
  const name = `name${pick % 3}`;
  if (verb === "create") {
    const from = pick % 2 === 0 ? "minimal" : name;
    const shape = { template: from, vcpus: 1, memoryMb: 512, timeoutSec: pick % 3 };
    const named = pick % 5 === 0 ? { name: `web-${pick % 2}` } : {};
    const made = await capsules.create(team, { ...shape, ...named, ...policiesBy(pick) });
    assert.ok(!ids.includes(made.id));
    ids.push(made.id);
  } else if (verb === "pause") assert.equal((await capsules.pause(team, id)).status, "paused");
  else if (verb === "resume") assert.equal((await capsules.resume(team, id)).status, "running");
  else if (verb === "stop") assert.equal((await capsules.stop(team, id)).status, "stopped");
  else if (verb === "start") assert.equal((await capsules.start(team, id)).status, "running");
  else if (verb === "destroy") {
    await capsules.destroy(team, id);
    destroyed.add(id);
  } else if (verb === "capture") {
    await templates.capture(team, { capsuleId: id, name, overwrite: pick % 2 === 0 });
    destroyed.add(id);
  } else if (verb === "delete") await templates.delete(team, name);
  else if (verb === "lose") host.guests.get(id)?.endWith({ kind: "lost", reason: "shot" });
  else if (verb === "off") host.guests.get(id)?.endWith({ kind: "powered_off", reason: "off" });
  else if (verb === "reset") host.guests.get(id)?.endWith({ kind: "reset", reason: "reset" });
  else if (verb === "idle") clock.advance(1_000);
  else if (verb === "use") await capsules.use(team, id, "files", () => {});
  else if (verb === "set") await capsules.update(team, id, policiesBy(pick));
  else if (verb === "name") await capsules.update(team, id, { name: pick % 4 === 0 ? null : `web-${pick % 2}` });
  else if (verb === "jump") clock.step(((pick % 3) - 1) * 7_200_000);
  else capsules.get(team, id);
}

async function play(
  operations: Operation[],
  service: FakeService,
  ids: string[],
  destroyed: Set<string>,
  isAlive = () => true,
): Promise<void> {
  for (const each of operations) {
    if (!isAlive()) return;
    try {
      await perform(each, service, ids, destroyed);
    } catch (error) {
      if (!(error instanceof CapsuleError) || !expected.has(error.code)) throw error;
    }
  }
}

function assertConsistent(service: FakeService, destroyed: Set<string>): void {
  const { host, store, templateRows, capsuleRows } = service;
  const known = store.all();
  for (const row of known) {
    const subject = `${row.id} ${row.status}`;
    const guest = host.guests.get(row.id);
    assert.equal(row.intent, null, `${subject} is at rest`);
    assert.equal(guest !== undefined, row.status === "running", `${subject}: a guest exactly when running`);
    if (guest !== undefined) assert.ok(!guest.isHeld && !guest.isStopped, `${subject}: its processes run`);
    if (row.status === "paused")
      assert.equal(host.checkpoints.get(row.id)?.isStale, false, `${subject}: has its checkpoint, of this disk`);
    const hasEnd = row.status === "running" && row.lifetimeSec > 0;
    assert.equal(row.expiresAt !== null, hasEnd, `${subject}: its lifetime ends exactly when it runs and has one`);
    if (row.status === "running") assert.ok(!host.checkpoints.has(row.id), `${subject}: has no checkpoint`);
    assert.ok(!destroyed.has(row.id), `${subject}: nothing destroyed comes back`);
  }
  const counted = Object.entries(store.counts()).filter(([, count]) => count !== 0);
  assert.deepEqual(new Map(counted), new Map(capsuleRows.counts()), "the counts are those of the table");
  assert.equal(store.runningMemoryMb(), capsuleRows.runningMemoryMb(live), "and so is the memory");
  const ids = new Set(known.map((row) => row.id));
  for (const id of [...host.guests.keys(), ...host.folders, ...host.checkpoints.keys()])
    assert.ok(ids.has(id), `residue of ${id}`);
  const needed = templateRows.all().filter((row) => row.retiredAt === null || capsuleRows.needing(row.storage) > 0);
  assert.deepEqual([...host.templates.keys()].sort(), needed.map((row) => row.storage).sort(), "template files = rows");
}

/** The host holds what it has rows of, by the same names, but where an answer was lost. */
function assertHeld(ownership: FakeOwnership, service: FakeService): void {
  const { held, unanswered } = ownership;
  const known = new Map(service.store.all().map(({ id, name }) => [id, name]));
  const clear = (of: Map<string, string | null>) => [...of].filter(([id]) => !unanswered.has(id)).sort();
  assert.deepEqual(clear(held), clear(known));
}

async function leavesOneRecord(isShared: boolean): Promise<void> {
  await fc.assert(
    fc.asyncProperty(scenario, outcomes, async ({ clients, delays, failures }, decisions) => {
      const ownership = new FakeOwnership();
      const service = fakeService({ ownership: isShared ? ownership : singleHost });
      interfere(service.host, delays, failures);
      decide(ownership, service.host, decisions);
      const ids: string[] = [];
      const destroyed = new Set<string>();
      await Promise.all(clients.map((operations) => play(operations, service, ids, destroyed)));
      await service.settled();
      await new Promise(setImmediate);
      await service.settled();
      assertConsistent(service, destroyed);
      if (isShared) assertHeld(ownership, service);
      service.host.before = () => {};
      decide(ownership, service.host, ["made"]);
      for (const view of service.capsules.list(service.team)) await service.capsules.destroy(service.team, view.id);
      await service.settled();
      const { guests, folders, checkpoints } = service.host;
      assert.deepEqual([guests.size, folders.size, checkpoints.size], [0, 0, 0], "DELETE leaves zero residue");
      service.database.close();
    }),
    { numRuns: isShared ? 500 : 1_000 },
  );
}

test("concurrent clients on a slow and failing host leave one consistent record", () => leavesOneRecord(false));

test("so they do where others decide who holds a capsule, late, and refuse or are not heard", () =>
  leavesOneRecord(true));

/** Daemons die alone, or with all VMs: a power cut, a reset of the machine. */
const crashClient = fc.array(
  operation.filter(({ verb }) => verb !== "lose" && verb !== "off" && verb !== "reset"),
  { maxLength: 12 },
);

async function startsAgain(isShared: boolean): Promise<void> {
  const delays = fc.array(fc.nat(2), { minLength: 1 });
  const clients = fc.array(crashClient, { minLength: 1, maxLength: 2 });
  const crashes = fc.record({ clients, delays, at: fc.nat(40), withVms: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(crashes, async ({ clients, delays, at, withVms }) => {
      const host = new FakeHost();
      const database = openDatabase(":memory:");
      const ownership = new FakeOwnership();
      const before = fakeService({ host, database, ownership: isShared ? ownership : singleHost });
      interfere(host, delays, [false]);
      ownership.moment = () => host.moment();
      let steps = 0;
      const died = Promise.withResolvers<void>();
      // From step `at` on, the old daemon's calls hang for ever: what a dead process does.
      const live = host.moment;
      let isDead = false;
      host.moment = async () => {
        await live();
        if (isDead || steps++ >= at) {
          isDead = true;
          died.resolve();
          await new Promise<never>(() => {});
        }
      };
      const ids: string[] = [];
      const destroyed = new Set<string>();
      const all = clients.map((operations) =>
        play([{ verb: "create", pick: 0 }, ...operations], before, ids, destroyed, () => !isDead),
      );
      const played = Promise.all(all);
      await Promise.race([died.promise, played.then(() => before.settled())]);
      isDead = true;
      await new Promise(setImmediate); // a change between two steps gets to the next, and no further

      host.moment = () => Promise.resolve();
      if (withVms) host.guests.clear();
      const after = fakeService({ host, database });
      await after.recover();
      await after.retired.collect();
      await after.settled();
      assertConsistent(after, destroyed);
      for (const row of after.store.all().filter(() => !withVms))
        assert.notEqual(row.status, "error", `${row.id}: ${row.errorReason}`);
      database.close();
    }),
    { numRuns: isShared ? 500 : 1_000 },
  );
}

test("a daemon that dies at any step of a host's work finds one consistent record at its next start", () =>
  startsAgain(false));

test("so does one that dies while others decide who holds a capsule", () => startsAgain(true));
