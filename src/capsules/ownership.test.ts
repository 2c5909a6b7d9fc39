/** Changes that meet at a decision about a capsule's host while it is awaited. A refused decision changes nothing. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Api, keys } from "../../test/api.ts";
import { FakeOwnership, type OwnershipVerb } from "../../test/fakes/fake-ownership.ts";
import { type FakeService, type FakeServiceOptions, fakeService, running } from "../../test/fakes/fake-service.ts";
import { waitFor } from "../../test/wait-for.ts";
import { CapsuleError } from "../wire/errors.ts";

const plain = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

/** Decisions of these verbs wait for `answer`, or for `refuse`, all of them. */
function held(options: FakeServiceOptions = {}) {
  const ownership = new FakeOwnership();
  const service = fakeService({ ...options, ownership });
  const waiting = new Set<OwnershipVerb>();
  let answers: ((error?: Error) => void)[] = [];
  const asked: string[] = [];
  let refusal: Error | undefined;
  ownership.moment = async (verb, id) => {
    if (!waiting.delete(verb) && !endless.has(verb)) return;
    asked.push(id);
    const { promise, resolve } = Promise.withResolvers<Error | undefined>();
    answers.push(resolve);
    refusal = await promise;
  };
  const endless = new Set<OwnershipVerb>();
  ownership.refuse = () => {
    const error = refusal;
    refusal = undefined;
    if (error !== undefined) throw error;
  };
  const settle = (error?: Error) => {
    for (const answer of answers.splice(0)) answer(error);
  };
  return {
    ...{ ownership, service, asked },
    /** The next decision of this verb waits; with `all`, each. */
    hold: (verb: OwnershipVerb, which: "next" | "all" = "next") => (which === "all" ? endless : waiting).add(verb),
    answer: () => {
      endless.clear();
      settle();
    },
    refuse: () => {
      endless.clear();
      settle(new CapsuleError("unavailable", "nobody decides"));
      answers = [];
    },
    isAsked: (count = 1) => waitFor("the decision is awaited", () => asked.length === count),
  };
}

async function paused(service: FakeService): Promise<string> {
  const id = await running(service);
  await service.capsules.pause(service.team, id);
  await service.settled();
  return id;
}

/** Rows, guests, folders and usage, which a refused change leaves as they were. */
function recordOf({ store, host, capsules, team }: FakeService) {
  return structuredClone({
    rows: store.all(),
    guests: [...host.guests.keys()],
    folders: [...host.folders],
    usage: capsules.usage(team),
  });
}

for (const [quota, limit] of [
  ["capsules", 3],
  ["runningVcpus", 3],
  ["runningMemoryMb", 3 * 512],
  ["starts", 3],
  ["hostMemoryMb", 3 * 512],
] as const) {
  test(`parallel creates never pass the quota ${quota}, while they wait either`, async () => {
    const { service, hold, answer, isAsked, asked } = held({ quotas: { [quota]: limit } });
    const { capsules, team } = service;
    hold("create", "all");
    const creates = Array.from({ length: 10 }, () => capsules.create(team, plain));
    const settled = Promise.allSettled(creates);
    await isAsked(3);
    await nextTurn();
    assert.equal(asked.length, 3, "the others are refused without a question");
    assert.equal(capsules.usage(team).capsules, 0, "nothing is used yet");
    answer();
    const codes = (await settled).map((each) => (each.status === "rejected" ? each.reason.code : "made"));
    const refused = quota === "hostMemoryMb" ? "no_capacity" : "quota_exceeded";
    assert.deepEqual(codes.sort(), [...Array(3).fill("made"), ...Array(7).fill(refused)].sort());
    await service.settled();
    assert.equal(capsules.usage(team).capsules, 3);
  });
}

test("a refused create gives its quota and its name back", async () => {
  const { service, hold, refuse, isAsked } = held({ quotas: { capsules: 1 } });
  const { capsules, team } = service;
  hold("create");
  const refused = assert.rejects(capsules.create(team, { ...plain, name: "web" }), { code: "unavailable" });
  await isAsked();
  await assert.rejects(capsules.create(team, { ...plain, name: "web" }), { code: "name_taken" });
  await assert.rejects(capsules.create(team, plain), { code: "quota_exceeded" });
  refuse();
  await refused;
  assert.equal((await capsules.create(team, { ...plain, name: "web" })).name, "web");
});

test("parallel resumes and creates share what is left of the running memory", async () => {
  const { service, hold, answer, isAsked, asked } = held({ quotas: { runningMemoryMb: 2 * 512 } });
  const { capsules, team } = service;
  const ids = [await paused(service), await paused(service), await paused(service)];
  hold("admitResume", "all");
  const resumes = ids.map((id) => capsules.resume(team, id));
  const settled = Promise.allSettled(resumes);
  await isAsked(2);
  await assert.rejects(capsules.create(team, plain), { code: "quota_exceeded" });
  assert.equal(asked.length, 2);
  answer();
  assert.deepEqual((await settled).map(({ status }) => status).sort(), ["fulfilled", "fulfilled", "rejected"]);
  assert.equal(capsules.usage(team).runningMemoryMb, 2 * 512);
});

test("two resumes of one capsule: one is asked for, and the other is told that it is being resumed", async () => {
  const { service, ownership, hold, answer, isAsked } = held();
  const { capsules, team, host } = service;
  const id = await paused(service);
  hold("admitResume");
  host.isHanging = true;
  const [first, second] = [capsules.resume(team, id), capsules.resume(team, id)];
  const late = assert.rejects(second, { code: "invalid_state", message: /being resumed/ });
  await isAsked();
  answer();
  await late;
  host.stopHanging();
  assert.equal((await first).status, "running");
  assert.equal(ownership.calls.filter((verb) => verb === "admitResume").length, 1);
});

test("requests that wait for a resume ask for it once", async () => {
  const { service, ownership, hold, answer, isAsked } = held();
  const { capsules, team } = service;
  const id = await running(service, 0, { autoResume: true });
  await capsules.pause(team, id);
  hold("admitResume");
  const uses = [1, 2, 3].map(() => capsules.use(team, id, "files", () => "used"));
  await isAsked();
  for (let turn = 0; turn < 5; turn++) await nextTurn();
  answer();
  assert.deepEqual(await Promise.all(uses), ["used", "used", "used"]);
  assert.equal(ownership.calls.filter((verb) => verb === "admitResume").length, 1);
});

test("a DELETE that waits for a resume's decision ends the resume; one that is awaited lets none begin", async () => {
  const { service, hold, answer, isAsked } = held();
  const { capsules, team, host, store } = service;
  const [first, second] = [await paused(service), await paused(service)];
  hold("admitResume");
  const resumed = assert.rejects(capsules.resume(team, first), { code: "not_found" });
  await isAsked();
  const destroyed = capsules.destroy(team, first);
  host.isHanging = true;
  answer();
  await Promise.all([resumed, destroyed]);
  host.stopHanging();

  hold("destroy");
  const gone = capsules.destroy(team, second);
  await isAsked(2);
  const late = assert.rejects(capsules.resume(team, second), { code: "not_found" });
  const again = assert.rejects(capsules.destroy(team, second), { code: "not_found" });
  assert.equal(capsules.get(team, second).status, "paused", "it is there until the decision");
  const restores = host.owners.length;
  answer();
  await Promise.all([gone, late, again]);
  assert.deepEqual([host.owners.length, store.all().length, host.folders.size], [restores, 0, 0]);
});

test("a capsule is used and paused while its DELETE waits, and a refused DELETE leaves it so", async () => {
  const { service, hold, refuse, isAsked } = held();
  const { capsules, team } = service;
  const id = await running(service);
  hold("destroy");
  const refused = assert.rejects(capsules.destroy(team, id), { code: "unavailable" });
  await isAsked();
  assert.equal(await capsules.use(team, id, "files", () => "used"), "used");
  await capsules.pause(team, id);
  const before = recordOf(service);
  refuse();
  await refused;
  assert.deepEqual(recordOf(service), before);
  assert.equal((await capsules.resume(team, id)).status, "running");
});

test("a DELETE whose capsule is paused meanwhile destroys it", async () => {
  const { service, hold, answer, isAsked } = held();
  const { capsules, team, store, host } = service;
  const id = await running(service);
  hold("destroy");
  const destroyed = capsules.destroy(team, id);
  await isAsked();
  await capsules.pause(team, id);
  answer();
  await destroyed;
  assert.deepEqual([store.all(), host.folders.size, host.checkpoints.size], [[], 0, 0]);
});

test("a capture is decided before a DELETE that comes after it, and refused it leaves the capsule running", async () => {
  const { service, hold, answer, refuse, isAsked } = held();
  const { capsules, templates, team, host } = service;
  const [first, second] = [await running(service), await running(service)];
  hold("capture");
  const refused = assert.rejects(templates.capture(team, { capsuleId: first, name: "t", overwrite: false }), {
    code: "unavailable",
  });
  await isAsked();
  refuse();
  await refused;
  assert.equal(await capsules.use(team, first, "files", () => "used"), "used");
  assert.deepEqual([templates.list(team, "snapshot"), host.templates.size], [[], 0]);

  hold("capture");
  const captured = templates.capture(team, { capsuleId: second, name: "t", overwrite: false });
  await isAsked(2);
  const late = assert.rejects(capsules.destroy(team, second), { code: "not_found" });
  await assert.rejects(templates.capture(team, { capsuleId: first, name: "t", overwrite: true }), {
    code: "template_name_taken",
  });
  answer();
  await Promise.all([captured, late]);
  assert.deepEqual(
    templates.list(team, "snapshot").map(({ name }) => name),
    ["t"],
  );
  assert.equal(host.templates.size, 1);
});

test("a DELETE that is decided before the capture's end makes no template", async () => {
  const { service, hold, answer, isAsked } = held();
  const { capsules, templates, team, host } = service;
  const id = await running(service);
  hold("destroy");
  const destroyed = capsules.destroy(team, id);
  await isAsked();
  const captured = assert.rejects(templates.capture(team, { capsuleId: id, name: "t", overwrite: false }), {
    code: "not_found",
  });
  await waitFor("its files are written", () => host.templates.size === 1);
  answer();
  await Promise.all([captured, destroyed]);
  await service.settled();
  assert.deepEqual([templates.list(team, "snapshot"), host.templates.size], [[], 0]);
});

test("a new name is nobody else's while it waits, other changes of the capsule follow it, and a refusal changes nothing", async () => {
  const { service, hold, answer, refuse, isAsked } = held();
  const { capsules, team } = service;
  const [id, other] = [await running(service), await running(service)];
  hold("rename");
  const refused = assert.rejects(capsules.update(team, id, { name: "web", labels: { a: "1" } }), {
    code: "unavailable",
  });
  await isAsked();
  await assert.rejects(capsules.update(team, other, { name: "web" }), { code: "name_taken" });
  await assert.rejects(capsules.create(team, { ...plain, name: "web" }), { code: "name_taken" });
  const before = recordOf(service);
  refuse();
  await refused;
  assert.deepEqual(recordOf(service), before);

  hold("rename");
  const renamed = capsules.update(team, id, { name: "web", labels: { a: "1" }, lifetimeSec: 100 });
  await isAsked(2);
  const labelled = capsules.update(team, id, { labels: { b: "2" } });
  await capsules.pause(team, id);
  answer();
  await Promise.all([renamed, labelled]);
  const { name, labels, status, expiresAt } = capsules.get(team, id);
  assert.deepEqual({ name, labels, status }, { name: "web", labels: { a: "1", b: "2" }, status: "paused" });
  assert.equal(expiresAt, null, "no lifetime counts while it is paused");
});

test("a retention that is over while its decision is awaited is met before a resume, or refused and met later", async () => {
  const { service, hold, answer, refuse, isAsked, asked } = held();
  const { capsules, team, clock, store } = service;
  const id = await running(service, 0, { retentionSec: 10 });
  await capsules.pause(team, id);
  await service.settled();
  hold("destroy");
  clock.advance(11_000);
  await isAsked();
  refuse();
  await service.settled();
  await nextTurn();
  assert.equal(capsules.get(team, id).status, "paused");

  hold("destroy");
  clock.advance(31_000);
  await isAsked(2);
  const late = assert.rejects(capsules.resume(team, id), { code: "not_found" });
  answer();
  await late;
  await service.settled();
  assert.deepEqual([store.all(), asked.length], [[], 2]);
});

test("a deadline does not destroy a capsule whose change is being decided", async () => {
  const { service, hold, answer, isAsked, ownership } = held();
  const { capsules, team, clock } = service;
  const id = await running(service, 0, { retentionSec: 10 });
  await capsules.pause(team, id);
  await service.settled();
  hold("admitResume");
  const resumed = capsules.resume(team, id);
  await isAsked();
  clock.advance(60_000);
  await nextTurn();
  answer();
  assert.equal((await resumed).status, "running");
  clock.advance(60_000);
  await nextTurn();
  assert.ok(!ownership.calls.includes("destroy"));
});

test("a capsule that is paused while its end at a deadline is decided is destroyed nevertheless", async () => {
  const { service, hold, answer, isAsked } = held();
  const { capsules, team, clock, store } = service;
  const id = await running(service, 10, { onTimeout: "destroy" });
  hold("destroy");
  clock.advance(10_000);
  await isAsked();
  await capsules.pause(team, id);
  answer();
  await service.settled();
  assert.deepEqual(store.all(), []);
});

test("a resume that waits while its template is deleted is a conflict", async () => {
  const { service, hold, answer, isAsked } = held();
  const { capsules, templates, team } = service;
  await templates.capture(team, { capsuleId: await running(service), name: "t", overwrite: false });
  const { id } = await capsules.create(team, { ...plain, template: "t" });
  await service.settled();
  await capsules.pause(team, id);
  hold("admitResume");
  const refused = assert.rejects(capsules.resume(team, id), { code: "conflict" });
  await isAsked();
  await templates.delete(team, "t");
  answer();
  await refused;
  assert.equal(capsules.get(team, id).status, "paused");
});

test("an idle capsule is paused while its new name is decided, and destroyed after it", async () => {
  for (const onTimeout of ["pause", "destroy"] as const) {
    const { service, hold, answer, isAsked } = held();
    const { capsules, team, clock, store } = service;
    const id = await running(service, 10, { onTimeout });
    hold("rename");
    const renamed = capsules.update(team, id, { name: "web" });
    await isAsked();
    clock.advance(11_000);
    await service.locks.released();
    assert.equal(capsules.get(team, id).status, onTimeout === "pause" ? "paused" : "running");
    answer();
    await renamed;
    clock.advance(60_000);
    await nextTurn();
    await service.settled();
    assert.deepEqual(
      store.all().map(({ status }) => status),
      onTimeout === "pause" ? ["paused"] : [],
    );
  }
});

test("a template that is deleted while a create of it waits has its files until the create has ended", async () => {
  const { service, hold, answer, refuse, isAsked } = held();
  const { capsules, templates, team, host } = service;
  const make = async () => {
    await templates.capture(team, { capsuleId: await running(service), name: "t", overwrite: false });
  };
  await make();
  hold("create");
  const created = capsules.create(team, { ...plain, template: "t" });
  await isAsked();
  await templates.delete(team, "t");
  assert.equal(host.templates.size, 1);
  answer();
  const { id } = await created;
  await service.settled();
  assert.equal(capsules.get(team, id).status, "running");
  await capsules.destroy(team, id);
  assert.equal(host.templates.size, 0);

  await make();
  hold("create");
  const refused = assert.rejects(capsules.create(team, { ...plain, template: "t" }), { code: "unavailable" });
  await isAsked(2);
  await templates.delete(team, "t");
  refuse();
  await refused;
  assert.equal(host.templates.size, 0);
});

test("the warm capsule of a create that waits is no orphan, and that of a refused one is removed", async () => {
  const { service, hold, answer, refuse, isAsked, asked } = held();
  const { capsules, team, host, reconciler } = service;
  const inventory = host.inventory.bind(host);
  host.ahead.push("cl-warm1", "cl-warm2");
  host.inventory = () => ({ ...inventory(), capsules: ["cl-warm1"] });
  hold("create");
  const created = capsules.create(team, plain);
  await isAsked();
  for (let pass = 0; pass < 3; pass++) assert.deepEqual(await reconciler.reconcile(), []);
  host.inventory = inventory;
  answer();
  assert.equal((await created).id, "cl-warm1");
  await service.settled();

  const removed: string[] = [];
  host.before = (verb, id) => void (verb === "remove" && removed.push(id));
  hold("create");
  const refused = assert.rejects(capsules.create(team, plain), { code: "unavailable" });
  await isAsked(2);
  refuse();
  await refused;
  assert.deepEqual([asked, removed], [["cl-warm1", "cl-warm2"], ["cl-warm2"]]);
});

test("a create that a stop of the service finds waiting is refused and given back; a DELETE is waited for", async () => {
  const { service, ownership, hold, answer, isAsked } = held();
  const { capsules, team, store } = service;
  const id = await running(service);
  hold("create");
  hold("destroy");
  const refused = assert.rejects(capsules.create(team, plain), { code: "no_capacity" });
  const destroyed = capsules.destroy(team, id);
  await isAsked(2);
  let isClosed = false;
  const closed = capsules.close(60_000).then(() => {
    isClosed = true;
  });
  for (let turn = 0; turn < 5; turn++) await nextTurn();
  assert.equal(isClosed, false);
  answer();
  await Promise.all([refused, destroyed, closed]);
  assert.deepEqual([store.all(), [...ownership.held]], [[], []]);
});

test("a stop of the service does not wait for a decision beyond its grace", async () => {
  const { service, hold, isAsked } = held();
  const { capsules, team } = service;
  const id = await running(service);
  hold("destroy");
  void capsules.destroy(team, id);
  await isAsked();
  await capsules.close(1);
  assert.equal(capsules.get(team, id).status, "running");
});

test("a row that cannot be inserted after the decision is given back", async () => {
  const { service, ownership } = held({ quotas: { capsules: 1 } });
  const { capsules, team, store, host } = service;
  const refused = capsules.create(team, plain, () => {
    throw new Error("no more room for a row");
  });
  await assert.rejects(refused, /no more room/);
  assert.deepEqual([store.all(), [...ownership.held], host.folders.size], [[], [], 0]);
  await capsules.create(team, plain); // within the quota
});

test("a second request with the Idempotency-Key waits for the first one's decision", async () => {
  const ownership = new FakeOwnership();
  const api = new Api({}, {}, { ownership });
  const answers: (() => void)[] = [];
  ownership.moment = () => new Promise((resolve) => answers.push(resolve));
  const create = () => {
    const headers = { "x-api-key": keys.red, "idempotency-key": "one" };
    return api.app.inject({ method: "POST", url: "/v1/capsules", payload: {}, headers });
  };
  ownership.refuse = () => {
    throw new CapsuleError("unavailable", "nobody decides");
  };
  const [first, second] = [create(), create()];
  await waitFor("the first waits", () => answers.length === 1);
  answers.shift()?.();
  const refused = await first;
  assert.deepEqual([refused.statusCode, refused.json().error.code], [503, "unavailable"]);
  assert.ok(refused.headers["retry-after"]);
  await waitFor("the second is a first one now", () => answers.length === 1);
  ownership.refuse = () => {};
  const third = create();
  ownership.moment = async () => {};
  answers.shift()?.();
  const made = await second;
  assert.deepEqual([made.statusCode, (await third).json().id], [201, made.json().id]);
  assert.deepEqual(ownership.calls, ["create", "create"]);
});
