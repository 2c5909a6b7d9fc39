import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, buildFloors, running } from "../../test/fakes/floors.ts";
import { Statements } from "../../test/teams/statements.ts";
import { waitFor } from "../../test/wait-for.ts";
import { FairSlots } from "../host/capacity/fair-slots.ts";
import { CapsuleError } from "../wire/errors.ts";

const request = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

test("a capsule is starting at once and running when its VM is up", async () => {
  const floors = buildFloors();
  const made = await floors.capsules.create(floors.team, request);
  assert.match(made.id, /^cl-[0-9a-z]{25}$/);
  assert.deepEqual([made.status, made.startedAt, made.lastActiveAt], ["starting", null, null]);
  floors.clock.advance(5);
  await floors.settled();
  const view = floors.capsules.get(floors.team, made.id);
  assert.deepEqual([view.status, view.startedAt, view.lastUpdated], ["running", 1_000_005, 1_000_005]);
  assert.equal(floors.host.guests.get(made.id)?.isHeld, false);
});

test("what has to be done before processes run is done first, at a create and at a resume, before commands are let in", async () => {
  const floors = buildFloors();
  const order: string[] = [];
  floors.host.before = (verb) => void order.push(verb);
  floors.disk.beforeRun = async (teamId, { id }) => {
    order.push(`${floors.capsules.get(teamId, id).status} ${id}`);
  };
  const id = await running(floors);
  await floors.capsules.pause(floors.team, id);
  await floors.settled();
  await floors.capsules.resume(floors.team, id);
  const starts = order.filter((each) => !["save", "end"].includes(each));
  assert.deepEqual(starts, ["start", `starting ${id}`, "release", "restore", `paused ${id}`, "release"]);
});

test("a boot that fails ends in error, with a reason and without residue", async () => {
  const floors = buildFloors();
  floors.host.before = (verb) => {
    if (verb === "start") throw new CapsuleError("agent_error", "no answer from the agent");
  };
  const { id } = await floors.capsules.create(floors.team, request);
  await floors.settled();
  const view = floors.capsules.get(floors.team, id);
  assert.deepEqual([view.status, view.errorReason], ["error", "no answer from the agent"]);
  floors.host.before = () => {};
  await floors.capsules.destroy(floors.team, id);
  assert.throws(() => floors.capsules.get(floors.team, id), { code: "not_found" });
});

test("unknown, malformed and foreign ids give the same answer", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const unknown = `cl-${"0".repeat(25)}`;
  for (const [team, asked] of [
    [floors.other, id],
    [floors.team, unknown],
    [floors.team, "../etc"],
    [floors.team, ""],
  ] as const) {
    assert.throws(() => floors.capsules.get(team, asked), {
      code: "not_found",
      message: `there is no capsule ${asked}`,
    });
  }
});

test("a view has the last activity, whether it is in memory or in the row", async () => {
  const floors = buildFloors();
  const id = await running(floors, 60);
  const lastActiveAt = () => floors.capsules.get(floors.team, id).lastActiveAt;
  floors.clock.advance(10);
  floors.capsules.ping(floors.team, id);
  assert.equal(lastActiveAt(), floors.clock.now());
  const ended = beginExec(floors, id);
  floors.clock.advance(10);
  await ended();
  const usedAt = floors.clock.now();
  assert.equal(lastActiveAt(), usedAt);
  floors.activity.flush();
  assert.equal(lastActiveAt(), usedAt);
});

test("a destroy begins in one transaction, and a capture ends its capsule in the one that makes the template", async () => {
  const statements = new Statements();
  const floors = buildFloors({ database: statements.database });
  const [first, second] = [await running(floors), await running(floors)];
  const writes = () =>
    statements
      .take()
      .flatMap((sql) => /^(BEGIN|COMMIT|INSERT[A-Z ]* INTO \w+|UPDATE \w+|DELETE FROM \w+)/.exec(sql)?.[0] ?? []);
  writes();
  await floors.capsules.destroy(floors.team, first);
  const destroy = ["INSERT OR IGNORE INTO tombstones", "UPDATE capsules", "COMMIT"];
  assert.deepEqual(writes(), ["BEGIN", ...destroy, "DELETE FROM capsules"]);
  await floors.templates.capture(floors.team, { capsuleId: second, name: "t", overwrite: false });
  const capture = ["UPDATE capsules", "BEGIN", "INSERT INTO templates", ...destroy, "DELETE FROM capsules"];
  assert.deepEqual(writes(), capture);
});

test("a capture whose template cannot be recorded leaves capsule, name and id as they were", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  floors.templateRows.insert = () => assert.fail("the disk is full");
  const captured = floors.templates.capture(floors.team, { capsuleId: id, name: "t", overwrite: false });
  await assert.rejects(captured, { code: "agent_error" });
  assert.equal(floors.capsules.get(floors.team, id).status, "running");
  assert.equal(floors.database.prepare("SELECT COUNT(*) AS n FROM tombstones").get()?.n, 0);
});

test("pause and resume keep every field but status and times", async () => {
  const floors = buildFloors();
  const id = await running(floors, 60);
  const before = floors.capsules.get(floors.team, id);
  for (let round = 0; round < 3; round++) {
    floors.clock.advance(10);
    const paused = await floors.capsules.pause(floors.team, id);
    assert.equal(paused.status, "paused");
    await floors.settled();
    assert.ok(floors.host.checkpoints.has(id) && !floors.host.guests.has(id));
    const resumed = await floors.capsules.resume(floors.team, id);
    assert.equal(resumed.status, "running");
    assert.equal(resumed.startedAt, floors.clock.now());
    const { startedAt, lastUpdated, ...same } = resumed;
    assert.deepEqual({ ...same, startedAt: before.startedAt, lastUpdated: before.lastUpdated }, before);
    assert.ok(startedAt !== null && lastUpdated === startedAt);
    assert.ok(!floors.host.checkpoints.has(id), "a running capsule has no checkpoint");
  }
});

/** A running capsule whose pause waits for its turn, behind another team's. */
async function waitingPause(timeoutSec = 0) {
  const floors = buildFloors();
  const id = await running(floors, timeoutSec);
  const ahead = Promise.withResolvers<void>();
  floors.host.saveLine = new FairSlots(1);
  const occupied = floors.host.saveLine.run("another team", () => ahead.promise);
  const free = () => {
    ahead.resolve();
    return occupied;
  };
  return { floors, id, guest: floors.host.guests.get(id)!, free };
}

test("a capsule whose pause waits for its turn runs on, and is being paused for its clients", async () => {
  const { floors, id, guest, free } = await waitingPause();
  const { capsules, team } = floors;
  const paused = capsules.pause(team, id);
  await new Promise(setImmediate);
  assert.deepEqual([capsules.get(team, id).status, guest.isStopped], ["running", false]);
  assert.throws(() => capsules.permit(team, id, "exec"), { message: /it is being paused$/ });
  await assert.rejects(capsules.pause(team, id), { code: "invalid_state" });
  await free();
  assert.equal((await paused).status, "paused");
});

test("a destroy ends the waiting of a pause, and of a capture", async () => {
  const { floors, id } = await waitingPause();
  const other = await running(floors);
  const { capsules, templates, team, host } = floors;
  const paused = assert.rejects(capsules.pause(team, id), { code: "not_found" });
  const captured = templates.capture(team, { capsuleId: other, name: "t", overwrite: false });
  const refused = assert.rejects(captured, { code: "not_found" });
  await new Promise(setImmediate);
  await Promise.all([id, other].map((each) => capsules.destroy(team, each)));
  await Promise.all([paused, refused]);
  assert.deepEqual([host.guests.size, host.folders.size, host.checkpoints.size], [0, 0, 0]);
});

test("a guest that ends while its pause waits ends the waiting, and its capsule has the status of its end", async () => {
  const { floors, id, guest } = await waitingPause();
  const { capsules, team } = floors;
  const paused = assert.rejects(capsules.pause(team, id), { code: "invalid_state" });
  await new Promise(setImmediate);
  guest.endWith({ kind: "lost", reason: "QEMU has ended" });
  await paused;
  await floors.settled();
  assert.equal(capsules.get(team, id).status, "error");
});

test("an idle timer's pause waits for its turn as a client's does", async () => {
  const { floors, id, guest, free } = await waitingPause(10);
  floors.clock.advance(10_000);
  await new Promise(setImmediate);
  assert.deepEqual([floors.store.get(id)?.intent, guest.isStopped], ["pause", false]);
  await free();
  await floors.settled();
  assert.equal(floors.capsules.get(floors.team, id).status, "paused");
});

test("a second pause at the same time gets 409, and so does an exec meanwhile", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const first = floors.capsules.pause(floors.team, id);
  await assert.rejects(floors.capsules.pause(floors.team, id), { code: "invalid_state" });
  assert.throws(() => floors.capsules.permit(floors.team, id, "exec"), { code: "invalid_state" });
  assert.equal((await first).status, "paused");
});

test("a pause answers before its VM is gone, and whoever comes next waits for that", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const gone = Promise.withResolvers<void>();
  const { host } = floors;
  const end = host.end.bind(host);
  host.end = (guest) => gone.promise.then(() => end(guest));
  const restored: boolean[] = [];
  host.before = (verb) => void (verb === "restore" && restored.push(host.guests.has(id)));
  assert.equal((await floors.capsules.pause(floors.team, id)).status, "paused");
  assert.ok(host.guests.has(id) && host.checkpoints.has(id));
  const resumed = floors.capsules.resume(floors.team, id);
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  assert.deepEqual(restored, []);
  gone.resolve();
  assert.equal((await resumed).status, "running");
  assert.deepEqual(restored, [false]);
});

test("a capsule of an earlier server is paused only after it was released", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const { host } = floors;
  const steps: string[] = [];
  host.before = (verb) => void steps.push(verb);
  const answers = Promise.withResolvers<void>();
  const release = host.release.bind(host);
  host.release = (guest) => answers.promise.then(() => release(guest));
  const adopted = floors.transitions.adopt(floors.store.get(id)!, host.guests.get(id)!);
  const paused = floors.capsules.pause(floors.team, id);
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  assert.deepEqual(steps, []);
  answers.resolve();
  await adopted;
  assert.equal((await paused).status, "paused");
  assert.deepEqual(steps.slice(0, 2), ["release", "save"]);
  assert.ok(host.checkpoints.has(id));
});

test("a VM that does not end after its pause is told of, and the capsule stays paused", async () => {
  const told: object[] = [];
  const log = { info() {}, warn() {}, error: (about: object) => void told.push(about) };
  const floors = buildFloors({ log });
  const id = await running(floors);
  floors.host.before = (verb) => {
    if (verb === "end") throw new Error("it hangs");
  };
  await floors.capsules.pause(floors.team, id);
  await floors.settled();
  assert.deepEqual(told, [{ err: new Error("it hangs"), capsule: id }]);
  assert.equal(floors.capsules.get(floors.team, id).status, "paused");
});

test("what a wake could not do is told once for each start and resume, and the capsule runs", async () => {
  const told: object[] = [];
  const floors = buildFloors({ log: { info() {}, warn: (about: object) => void told.push(about), error() {} } });
  const problems = ["/etc/hosts cannot be written: Read-only file system"];
  floors.host.wakeProblems = problems;
  const id = await running(floors);
  assert.deepEqual(told, [{ capsule: id, problems }]);
  await floors.capsules.pause(floors.team, id);
  floors.host.wakeProblems = [];
  assert.equal((await floors.capsules.resume(floors.team, id)).status, "running");
  assert.equal(told.length, 1);
});

test("a pause that fails leaves the capsule running and unharmed", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const before = floors.capsules.get(floors.team, id);
  floors.host.before = (verb) => {
    if (verb === "save") throw new CapsuleError("no_space", "the disk is full");
  };
  await assert.rejects(floors.capsules.pause(floors.team, id), { code: "no_space" });
  assert.deepEqual(floors.capsules.get(floors.team, id), before);
  floors.host.before = () => {};
  assert.equal((await floors.capsules.pause(floors.team, id)).status, "paused");
});

test("a resume that fails leaves the capsule paused and unharmed", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const paused = await floors.capsules.pause(floors.team, id);
  floors.host.before = (verb) => {
    if (verb === "restore") throw new Error("qemu said no");
  };
  await assert.rejects(floors.capsules.resume(floors.team, id), { code: "agent_error" });
  assert.deepEqual(floors.capsules.get(floors.team, id), paused);
  floors.host.before = () => {};
  assert.equal((await floors.capsules.resume(floors.team, id)).status, "running");
});

test("DELETE waits its turn and wins, whatever is under way", async () => {
  for (const verb of ["create", "pause", "resume"] as const) {
    const floors = buildFloors();
    const id = verb === "create" ? (await floors.capsules.create(floors.team, request)).id : await running(floors);
    if (verb === "resume") await floors.capsules.pause(floors.team, id);
    const change = verb === "create" ? Promise.resolve() : floors.capsules[verb](floors.team, id);
    const outcome = change.then(
      () => "done",
      (error: CapsuleError) => error.code,
    );
    const destroyed = floors.capsules.destroy(floors.team, id);
    assert.throws(() => floors.capsules.get(floors.team, id), { code: "not_found" }, "gone at once");
    await assert.rejects(floors.capsules.destroy(floors.team, id), { code: "not_found" });
    await destroyed;
    assert.ok(["done", "not_found"].includes(await outcome), verb);
    await floors.settled();
    const { guests, folders, checkpoints } = floors.host;
    assert.deepEqual([guests.size, folders.size, checkpoints.size, floors.store.all().length], [0, 0, 0, 0]);
  }
});

test("a guest that powers itself off is stopped; one that is lost is in error with the reason", async () => {
  const floors = buildFloors();
  for (const [kind, status] of [
    ["powered_off", "stopped"],
    ["lost", "error"],
  ] as const) {
    const id = await running(floors);
    const ends: string[] = [];
    floors.capsules.onEnd(id, (end) => ends.push(end));
    const guest = floors.host.guests.get(id)!;
    guest.endWith({ kind, reason: "because" });
    await guest.ended;
    await floors.settled();
    const view = floors.capsules.get(floors.team, id);
    assert.deepEqual([view.status, view.errorReason], [status, status === "error" ? "because" : null]);
    assert.deepEqual(ends, [status]);
    assert.equal(floors.host.guests.size, 0);
  }
});

test("wait resolves when the status is reached, when it cannot be reached any more, and at its time limit", async () => {
  const floors = buildFloors();
  const { signal } = new AbortController();
  const { id } = await floors.capsules.create(floors.team, request);
  assert.equal((await floors.capsules.wait(floors.team, id, "running", 60_000, signal)).status, "running");
  assert.equal((await floors.capsules.wait(floors.team, id, "paused", 1, signal)).status, "running");
  const guest = floors.host.guests.get(id)!;
  const waiting = floors.capsules.wait(floors.team, id, "paused", 60_000, signal);
  guest.endWith({ kind: "lost", reason: "gone" });
  assert.equal((await waiting).status, "error");
  const doomed = floors.capsules.wait(floors.team, await running(floors), "paused", 60_000, signal);
  await floors.capsules.destroy(floors.team, floors.capsules.list(floors.team)[0]!.id);
  await assert.rejects(doomed, { code: "not_found" });
});

test("the list is the team's own, newest first", async () => {
  const floors = buildFloors();
  const ids = [await running(floors), await running(floors), await running(floors)];
  assert.deepEqual(
    floors.capsules.list(floors.team).map((view) => view.id),
    ids.toReversed(),
  );
  assert.deepEqual(floors.capsules.list(floors.other), []);
});

test("a list of many costs as many statements as one of a few", async () => {
  const statements = new Statements();
  const floors = buildFloors({ database: statements.database });
  const costs = () => {
    statements.take();
    floors.capsules.list(floors.team);
    const list = statements.take();
    for (const { id } of floors.capsules.list(floors.team)) floors.capsules.get(floors.team, id);
    return { list, all: statements.take() };
  };
  await running(floors);
  const few = costs();
  for (let each = 0; each < 40; each++) await running(floors);
  await floors.settled();
  assert.equal(floors.capsules.list(floors.team).length, 41);
  const many = costs();
  assert.deepEqual(many.list, few.list);
  assert.ok(many.list.length <= 2, many.list.join("; "));
  assert.ok(many.all.length <= 2 * 41 + 2, `${many.all.length} for a list and 41 of its capsules`);
});

test("the list keeps its order when clocks are set back and when two capsules have one time", async () => {
  const floors = buildFloors();
  const made: string[] = [];
  for (const step of [0, 0, -60_000, 0, 5]) {
    floors.clock.step(step);
    made.unshift((await floors.capsules.create(floors.team, request)).id);
  }
  await floors.settled();
  assert.deepEqual(
    floors.capsules.list(floors.team).map(({ id }) => id),
    made,
  );
});

test("DELETE does not wait for a guest that hangs while it is released", async () => {
  const floors = buildFloors();
  floors.host.isMute = true;
  const { id } = await floors.capsules.create(floors.team, request);
  await waitFor("the guest is there", () => floors.runs.guest(id) !== undefined);
  assert.equal(floors.capsules.get(floors.team, id).status, "running");
  await floors.capsules.destroy(floors.team, id);
  assert.deepEqual([...floors.host.guests.keys(), ...floors.host.folders], []);
});

test("DELETE does not wait for a VM that hangs while it is started or resumed, and nobody hears of a failure", async () => {
  for (const verb of ["create", "resume"] as const) {
    const floors = buildFloors();
    const { capsules, host, team } = floors;
    const paused = verb === "resume" ? await running(floors) : undefined;
    if (paused !== undefined) await capsules.pause(team, paused);
    host.isHanging = true;
    const id = paused ?? (await capsules.create(team, request)).id;
    const resumed = verb === "resume" ? assert.rejects(capsules.resume(team, id), { code: "not_found" }) : undefined;
    await new Promise(setImmediate);
    assert.equal(capsules.get(team, id).status, verb === "resume" ? "paused" : "starting");
    const statuses: (string | undefined)[] = [];
    capsules.onChange((_team, _id, view) => statuses.push(view?.status));
    await capsules.destroy(team, id);
    await resumed;
    assert.deepEqual(statuses, [undefined]);
    assert.deepEqual([...host.guests.keys(), ...host.folders, ...host.checkpoints, ...floors.store.all()], []);
  }
});
