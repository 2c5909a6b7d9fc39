import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, fakeService, running } from "../../test/fakes/fake-service.ts";
import { Statements } from "../../test/teams/statements.ts";
import { waitFor } from "../../test/wait-for.ts";
import { FairSlots } from "../host/capacity/fair-slots.ts";
import { CapsuleError } from "../wire/errors.ts";

const request = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

test("a capsule is starting at once and running when its VM is up", async () => {
  const service = fakeService();
  const made = await service.capsules.create(service.team, request);
  assert.match(made.id, /^cl-[0-9a-z]{25}$/);
  assert.deepEqual([made.status, made.startedAt, made.lastActiveAt], ["starting", null, null]);
  service.clock.advance(5);
  await service.settled();
  const view = service.capsules.get(service.team, made.id);
  assert.deepEqual([view.status, view.startedAt, view.lastUpdated], ["running", 1_000_005, 1_000_005]);
  assert.equal(service.host.guests.get(made.id)?.isHeld, false);
});

test("what has to be done before processes run is done first, at a create and at a resume, before commands are let in", async () => {
  const service = fakeService();
  const order: string[] = [];
  service.host.before = (verb) => void order.push(verb);
  service.disk.beforeRun = async (teamId, { id }) => {
    order.push(`${service.capsules.get(teamId, id).status} ${id}`);
  };
  const id = await running(service);
  await service.capsules.pause(service.team, id);
  await service.settled();
  await service.capsules.resume(service.team, id);
  const starts = order.filter((each) => !["save", "end"].includes(each));
  assert.deepEqual(starts, ["start", `starting ${id}`, "release", "restore", `paused ${id}`, "release"]);
});

test("a boot that fails ends in error, with a reason and without residue", async () => {
  const service = fakeService();
  service.host.before = (verb) => {
    if (verb === "start") throw new CapsuleError("agent_error", "no answer from the agent");
  };
  const { id } = await service.capsules.create(service.team, request);
  await service.settled();
  const view = service.capsules.get(service.team, id);
  assert.deepEqual([view.status, view.errorReason], ["error", "no answer from the agent"]);
  service.host.before = () => {};
  await service.capsules.destroy(service.team, id);
  assert.throws(() => service.capsules.get(service.team, id), { code: "not_found" });
});

test("unknown, malformed and foreign ids give the same answer", async () => {
  const service = fakeService();
  const id = await running(service);
  const unknown = `cl-${"0".repeat(25)}`;
  for (const [team, asked] of [
    [service.other, id],
    [service.team, unknown],
    [service.team, "../etc"],
    [service.team, ""],
  ] as const) {
    assert.throws(() => service.capsules.get(team, asked), {
      code: "not_found",
      message: `there is no capsule ${asked}`,
    });
  }
});

test("a view has the last activity, whether it is in memory or in the row", async () => {
  const service = fakeService();
  const id = await running(service, 60);
  const lastActiveAt = () => service.capsules.get(service.team, id).lastActiveAt;
  service.clock.advance(10);
  service.capsules.ping(service.team, id);
  assert.equal(lastActiveAt(), service.clock.now());
  const ended = beginExec(service, id);
  service.clock.advance(10);
  await ended();
  const usedAt = service.clock.now();
  assert.equal(lastActiveAt(), usedAt);
  service.activity.flush();
  assert.equal(lastActiveAt(), usedAt);
});

test("a destroy begins in one transaction, and a capture ends its capsule in the one that makes the template", async () => {
  const statements = new Statements();
  const service = fakeService({ database: statements.database });
  const [first, second] = [await running(service), await running(service)];
  const writes = () =>
    statements
      .take()
      .flatMap((sql) => /^(BEGIN|COMMIT|INSERT[A-Z ]* INTO \w+|UPDATE \w+|DELETE FROM \w+)/.exec(sql)?.[0] ?? []);
  writes();
  await service.capsules.destroy(service.team, first);
  const destroy = ["INSERT OR IGNORE INTO tombstones", "UPDATE capsules", "COMMIT"];
  assert.deepEqual(writes(), ["BEGIN", ...destroy, "DELETE FROM capsules"]);
  await service.templates.capture(service.team, { capsuleId: second, name: "t", overwrite: false });
  const intent = ["BEGIN", "UPDATE capsules", "INSERT OR REPLACE INTO storages", "COMMIT"];
  const commit = ["BEGIN", "INSERT INTO templates", ...destroy];
  assert.deepEqual(writes(), [...intent, ...commit, "DELETE FROM capsules"]);
});

test("a capture whose template cannot be recorded leaves capsule, name and id as they were", async () => {
  const service = fakeService();
  const id = await running(service);
  service.templateRows.insert = () => assert.fail("the disk is full");
  const captured = service.templates.capture(service.team, { capsuleId: id, name: "t", overwrite: false });
  await assert.rejects(captured, { code: "agent_error" });
  assert.equal(service.capsules.get(service.team, id).status, "running");
  assert.equal(service.database.prepare("SELECT COUNT(*) AS n FROM tombstones").get()?.n, 0);
});

test("pause and resume keep every field but status and times", async () => {
  const service = fakeService();
  const id = await running(service, 60);
  const before = service.capsules.get(service.team, id);
  for (let round = 0; round < 3; round++) {
    service.clock.advance(10);
    const paused = await service.capsules.pause(service.team, id);
    assert.equal(paused.status, "paused");
    await service.settled();
    assert.ok(service.host.checkpoints.has(id) && !service.host.guests.has(id));
    const resumed = await service.capsules.resume(service.team, id);
    assert.equal(resumed.status, "running");
    assert.equal(resumed.startedAt, service.clock.now());
    const { startedAt, lastUpdated, ...same } = resumed;
    assert.deepEqual({ ...same, startedAt: before.startedAt, lastUpdated: before.lastUpdated }, before);
    assert.ok(startedAt !== null && lastUpdated === startedAt);
    assert.ok(!service.host.checkpoints.has(id), "a running capsule has no checkpoint");
  }
});

/** A running capsule whose pause waits for its turn, behind another team's. */
async function waitingPause(timeoutSec = 0) {
  const service = fakeService();
  const id = await running(service, timeoutSec);
  const ahead = Promise.withResolvers<void>();
  service.host.saveLine = new FairSlots(1);
  const occupied = service.host.saveLine.run("another team", () => ahead.promise);
  const free = () => {
    ahead.resolve();
    return occupied;
  };
  return { service, id, guest: service.host.guests.get(id)!, free };
}

test("a capsule whose pause waits for its turn runs on, and is being paused for its clients", async () => {
  const { service, id, guest, free } = await waitingPause();
  const { capsules, team } = service;
  const paused = capsules.pause(team, id);
  await new Promise(setImmediate);
  assert.deepEqual([capsules.get(team, id).status, guest.isStopped], ["running", false]);
  assert.throws(() => capsules.permit(team, id, "exec"), { message: /it is being paused$/ });
  await assert.rejects(capsules.pause(team, id), { code: "invalid_state" });
  await free();
  assert.equal((await paused).status, "paused");
});

test("a destroy ends the waiting of a pause, and of a capture", async () => {
  const { service, id } = await waitingPause();
  const other = await running(service);
  const { capsules, templates, team, host } = service;
  const paused = assert.rejects(capsules.pause(team, id), { code: "not_found" });
  const captured = templates.capture(team, { capsuleId: other, name: "t", overwrite: false });
  const refused = assert.rejects(captured, { code: "not_found" });
  await new Promise(setImmediate);
  await Promise.all([id, other].map((each) => capsules.destroy(team, each)));
  await Promise.all([paused, refused]);
  assert.deepEqual([host.guests.size, host.folders.size, host.checkpoints.size], [0, 0, 0]);
});

test("a guest that ends while its pause waits ends the waiting, and its capsule has the status of its end", async () => {
  const { service, id, guest } = await waitingPause();
  const { capsules, team } = service;
  const paused = assert.rejects(capsules.pause(team, id), { code: "invalid_state" });
  await new Promise(setImmediate);
  guest.endWith({ kind: "lost", reason: "QEMU has ended" });
  await paused;
  await service.settled();
  assert.equal(capsules.get(team, id).status, "error");
});

test("an idle timer's pause waits for its turn as a client's does", async () => {
  const { service, id, guest, free } = await waitingPause(10);
  service.clock.advance(10_000);
  await new Promise(setImmediate);
  assert.deepEqual([service.store.get(id)?.intent, guest.isStopped], ["pause", false]);
  await free();
  await service.settled();
  assert.equal(service.capsules.get(service.team, id).status, "paused");
});

test("a second pause at the same time gets 409, and so does an exec meanwhile", async () => {
  const service = fakeService();
  const id = await running(service);
  const first = service.capsules.pause(service.team, id);
  await assert.rejects(service.capsules.pause(service.team, id), { code: "invalid_state" });
  assert.throws(() => service.capsules.permit(service.team, id, "exec"), { code: "invalid_state" });
  assert.equal((await first).status, "paused");
});

test("a pause answers before its VM is gone, and whoever comes next waits for that", async () => {
  const service = fakeService();
  const id = await running(service);
  const gone = Promise.withResolvers<void>();
  const { host } = service;
  const end = host.end.bind(host);
  host.end = (guest) => gone.promise.then(() => end(guest));
  const restored: boolean[] = [];
  host.before = (verb) => void (verb === "restore" && restored.push(host.guests.has(id)));
  assert.equal((await service.capsules.pause(service.team, id)).status, "paused");
  assert.ok(host.guests.has(id) && host.checkpoints.has(id));
  const resumed = service.capsules.resume(service.team, id);
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  assert.deepEqual(restored, []);
  gone.resolve();
  assert.equal((await resumed).status, "running");
  assert.deepEqual(restored, [false]);
});

test("a capsule of an earlier server is paused only after it was released", async () => {
  const service = fakeService();
  const id = await running(service);
  const { host } = service;
  const steps: string[] = [];
  host.before = (verb) => void steps.push(verb);
  const answers = Promise.withResolvers<void>();
  const release = host.release.bind(host);
  host.release = (guest) => answers.promise.then(() => release(guest));
  const adopted = service.locks.runExclusive(id, () =>
    service.transitions.run(host.guests.get(id)!, service.store.get(id)!, true),
  );
  const paused = service.capsules.pause(service.team, id);
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
  const service = fakeService({ log });
  const id = await running(service);
  service.host.before = (verb) => {
    if (verb === "end") throw new Error("it hangs");
  };
  await service.capsules.pause(service.team, id);
  await service.settled();
  assert.deepEqual(told, [{ err: new Error("it hangs"), capsule: id }]);
  assert.equal(service.capsules.get(service.team, id).status, "paused");
});

test("what a wake could not do is told once for each start and resume, and the capsule runs", async () => {
  const told: object[] = [];
  const service = fakeService({ log: { info() {}, warn: (about: object) => void told.push(about), error() {} } });
  const problems = ["/etc/hosts cannot be written: Read-only file system"];
  service.host.wakeProblems = problems;
  const id = await running(service);
  assert.deepEqual(told, [{ capsule: id, problems }]);
  await service.capsules.pause(service.team, id);
  service.host.wakeProblems = [];
  assert.equal((await service.capsules.resume(service.team, id)).status, "running");
  assert.equal(told.length, 1);
});

test("a pause that fails leaves the capsule running and unharmed", async () => {
  const service = fakeService();
  const id = await running(service);
  const before = service.capsules.get(service.team, id);
  service.host.before = (verb) => {
    if (verb === "save") throw new CapsuleError("no_space", "the disk is full");
  };
  await assert.rejects(service.capsules.pause(service.team, id), { code: "no_space" });
  assert.deepEqual(service.capsules.get(service.team, id), before);
  service.host.before = () => {};
  assert.equal((await service.capsules.pause(service.team, id)).status, "paused");
});

test("a resume that fails leaves the capsule paused and unharmed", async () => {
  const service = fakeService();
  const id = await running(service);
  const paused = await service.capsules.pause(service.team, id);
  service.host.before = (verb) => {
    if (verb === "restore") throw new Error("qemu said no");
  };
  await assert.rejects(service.capsules.resume(service.team, id), { code: "agent_error" });
  assert.deepEqual(service.capsules.get(service.team, id), paused);
  service.host.before = () => {};
  assert.equal((await service.capsules.resume(service.team, id)).status, "running");
});

test("DELETE waits its turn and wins, whatever is under way", async () => {
  for (const verb of ["create", "pause", "resume"] as const) {
    const service = fakeService();
    const id = verb === "create" ? (await service.capsules.create(service.team, request)).id : await running(service);
    if (verb === "resume") await service.capsules.pause(service.team, id);
    const change = verb === "create" ? Promise.resolve() : service.capsules[verb](service.team, id);
    const outcome = change.then(
      () => "done",
      (error: CapsuleError) => error.code,
    );
    const destroyed = service.capsules.destroy(service.team, id);
    assert.throws(() => service.capsules.get(service.team, id), { code: "not_found" }, "gone at once");
    await assert.rejects(service.capsules.destroy(service.team, id), { code: "not_found" });
    await destroyed;
    assert.ok(["done", "not_found"].includes(await outcome), verb);
    await service.settled();
    const { guests, folders, checkpoints } = service.host;
    assert.deepEqual([guests.size, folders.size, checkpoints.size, service.store.all().length], [0, 0, 0, 0]);
  }
});

test("a guest that powers itself off is stopped; one that is lost is in error with the reason", async () => {
  const service = fakeService();
  for (const [kind, status] of [
    ["powered_off", "stopped"],
    ["lost", "error"],
  ] as const) {
    const id = await running(service);
    const ends: string[] = [];
    service.capsules.onEnd(id, (end) => ends.push(end));
    const guest = service.host.guests.get(id)!;
    guest.endWith({ kind, reason: "because" });
    await guest.ended;
    await service.settled();
    const view = service.capsules.get(service.team, id);
    assert.deepEqual([view.status, view.errorReason], [status, status === "error" ? "because" : null]);
    assert.deepEqual(ends, [status]);
    assert.equal(service.host.guests.size, 0);
  }
});

test("wait resolves when the status is reached, when it cannot be reached any more, and at its time limit", async () => {
  const service = fakeService();
  const { signal } = new AbortController();
  const { id } = await service.capsules.create(service.team, request);
  const statusAfter = async (waiting: ReturnType<typeof service.capsules.wait>) => (await waiting)().status;
  assert.equal(await statusAfter(service.capsules.wait(service.team, id, "running", 60_000, signal)), "running");
  assert.equal(await statusAfter(service.capsules.wait(service.team, id, "paused", 1, signal)), "running");
  const guest = service.host.guests.get(id)!;
  const waiting = service.capsules.wait(service.team, id, "paused", 60_000, signal);
  guest.endWith({ kind: "lost", reason: "gone" });
  assert.equal(await statusAfter(waiting), "error");
  const doomed = service.capsules.wait(service.team, await running(service), "paused", 60_000, signal);
  await service.capsules.destroy(service.team, service.capsules.list(service.team)[0]!.id);
  await assert.rejects(statusAfter(doomed), { code: "not_found" });
});

test("the list is the team's own, newest first", async () => {
  const service = fakeService();
  const ids = [await running(service), await running(service), await running(service)];
  assert.deepEqual(
    service.capsules.list(service.team).map((view) => view.id),
    ids.toReversed(),
  );
  assert.deepEqual(service.capsules.list(service.other), []);
});

test("a list of many costs as many statements as one of a few", async () => {
  const statements = new Statements();
  const service = fakeService({ database: statements.database });
  const costs = () => {
    statements.take();
    service.capsules.list(service.team);
    const list = statements.take();
    for (const { id } of service.capsules.list(service.team)) service.capsules.get(service.team, id);
    return { list, all: statements.take() };
  };
  await running(service);
  const few = costs();
  for (let each = 0; each < 40; each++) await running(service);
  await service.settled();
  assert.equal(service.capsules.list(service.team).length, 41);
  const many = costs();
  assert.deepEqual(many.list, few.list);
  assert.ok(many.list.length <= 2, many.list.join("; "));
  assert.ok(many.all.length <= 2 * 41 + 2, `${many.all.length} for a list and 41 of its capsules`);
});

test("the list keeps its order when clocks are set back and when two capsules have one time", async () => {
  const service = fakeService();
  const made: string[] = [];
  for (const step of [0, 0, -60_000, 0, 5]) {
    service.clock.step(step);
    made.unshift((await service.capsules.create(service.team, request)).id);
  }
  await service.settled();
  assert.deepEqual(
    service.capsules.list(service.team).map(({ id }) => id),
    made,
  );
});

test("DELETE does not wait for a guest that hangs while it is released", async () => {
  const service = fakeService();
  service.host.isMute = true;
  const { id } = await service.capsules.create(service.team, request);
  await waitFor("the guest is there", () => service.runs.guest(id) !== undefined);
  assert.equal(service.capsules.get(service.team, id).status, "running");
  await service.capsules.destroy(service.team, id);
  assert.deepEqual([...service.host.guests.keys(), ...service.host.folders], []);
});

test("DELETE does not wait for a VM that hangs while it is started or resumed, and nobody hears of a failure", async () => {
  for (const verb of ["create", "resume"] as const) {
    const service = fakeService();
    const { capsules, host, team } = service;
    const paused = verb === "resume" ? await running(service) : undefined;
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
    assert.deepEqual([...host.guests.keys(), ...host.folders, ...host.checkpoints, ...service.store.all()], []);
  }
});
