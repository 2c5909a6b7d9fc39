/** Running capsules of a host that is drained: they are moved to another one, or stay and say why, whatever comes between. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import pg from "pg";
import type { ClusterStep } from "../../src/cluster/copies.ts";
import { drainHost, heldBy, resumeHost } from "../../src/cluster/host-list.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { FakeBucket, type FakeFiles } from "../fakes/fake-bucket.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, type HostOptions, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

interface Host extends FakeHostOfCluster {
  files: FakeFiles;
  uploads: FakeUploads;
}

/** Hosts a and b, and c where a test asks for it. The clock of each moves only when a test moves it. */
async function world(limits = {}) {
  const database = await clusterDatabase(server, limits);
  await addTeams(database);
  await database.sql.query("DELETE FROM hosts", [], about);
  const bucket = new FakeBucket();
  const beds = new AsyncDisposableStack();
  beds.use(database);
  const alive = new Set<Host>();
  const host = async (name: string, options: HostOptions = {}): Promise<Host> => {
    const machine = options.machine ?? new FakeHost();
    const files = bucket.filesOf(machine);
    const uploads = new FakeUploads(machine, bucket.checkpoints);
    const made = await hostOfCluster(database, name, { files, uploads, ...options, machine });
    beds.use(made);
    const all = Object.assign(made, { files, uploads });
    alive.add(all);
    return all;
  };
  /** A second passes on each host that is alive: each has heard of the others. */
  const second = async () => {
    for (const each of alive) await each.second();
  };
  /** Resolves when `isSo` holds; a second passes before each look. */
  const seconds = (what: string, isSo: () => boolean | Promise<boolean>) =>
    waitFor(what, async () => {
      await second();
      return await isSo();
    });
  const dies = async (each: Host) => {
    alive.delete(each);
    await each.kill();
  };
  /** A daemon that is killed, and its next life. */
  const restarted = async (each: Host) => {
    await dies(each);
    return await host(each.name, { database: each.database, machine: each.machine });
  };
  const rowOf = async (id: string) => {
    const [row] = await database.sql.query<{
      host: string | null;
      epoch: number;
      status: string;
      moving: boolean | null;
      stays: string | null;
    }>("SELECT host, epoch, status, moving, stays FROM capsules WHERE id = $1", [id], about);
    return row!;
  };
  return {
    ...database,
    bucket,
    host,
    second,
    seconds,
    dies,
    restarted,
    rowOf,
    [Symbol.asyncDispose]: () => beds.disposeAsync(),
  };
}

/** Hosts a, which is drained, and b, that know of each other. */
async function twoHosts(limits = {}, options: { a?: HostOptions; b?: HostOptions } = {}) {
  const cluster = await world(limits);
  const a = await cluster.host("a", options.a);
  const b = await cluster.host("b", options.b);
  await cluster.second();
  return { ...cluster, a, b, [Symbol.asyncDispose]: () => cluster[Symbol.asyncDispose]() };
}

const runsAt = (host: Host, id: string) =>
  host.service.store.get(id)?.status === "running" && host.service.store.get(id)?.intent === null;
const statusAt = (host: Host, id: string) => host.service.store.get(id)?.status;
const isMarked = (host: Host, id: string) => new HoldingRows(host.database).isMoving(id);

/** A capsule that runs on no host or on one; it has a row on one host at most. */
function assertOneOwner(id: string, ...hosts: Host[]): void {
  const holders = hosts.filter(({ service }) => service.store.get(id) !== undefined);
  assert.ok(holders.length <= 1, `${holders.map(({ name }) => name)} have a row of ${id}`);
  const machines = hosts.filter(({ machine }) => machine.guests.get(id)?.isStopped === false);
  assert.ok(machines.length <= 1, `${id} runs on ${machines.map(({ name }) => name)}`);
}

/** Uploads of a host that go on until they are let go. */
function held(host: Host): () => void {
  const { promise, resolve } = Promise.withResolvers<void>();
  host.uploads.moment = (_id, signal) =>
    Promise.race([promise, once(signal, "abort").then(() => signal.throwIfAborted())]);
  return () => {
    host.uploads.moment = () => Promise.resolve();
    resolve();
  };
}

/** A daemon that ends when it has come to a step: nothing is done behind it. */
function endingAt(step: string): { step: ClusterStep; hasEnded: () => boolean } {
  let hasEnded = false;
  return {
    hasEnded: () => hasEnded,
    step(name) {
      if (name !== step) return;
      hasEnded = true;
      throw new Error(`the daemon has ended at ${step}`);
    },
  };
}

test("a running capsule is paused, released, and resumed by another host, as its team sees", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, seconds, rowOf } = cluster;
  const id = await created(a, { name: "web", labels: { k: "v" }, envs: { CI: "1" } });
  const seen: string[] = [];
  const ends: string[] = [];
  a.service.capsules.onEnd(id, (end) => ends.push(end));
  for (const host of [a, b]) {
    host.service.capsules.onChange((_team, changed, view) => {
      if (changed === id && view !== undefined) seen.push(`${host.name} ${view.status}`);
    });
  }
  await drainHost(sql, "a");
  await seconds("the capsule to run at b", () => runsAt(b, id));
  await a.cluster.moved();
  assertOneOwner(id, a, b);
  assert.deepEqual([seen, ends], [["a paused", "b paused", "b running"], ["moved"]]);
  const { status, json } = await b.call("GET", "/v1/capsules/web");
  assert.deepEqual([status, json.id, json.host, json.status, json.labels], [200, id, "b", "running", { k: "v" }]);
  const ran = await a.call("POST", `/v1/capsules/${id}/exec`, { cmd: "echo", args: ["there"] });
  assert.deepEqual([ran.status, ran.json.stdout], [200, "there\n"]);
  assert.ok(new HoldingRows(b.database).kept(id)?.envs);
  await b.copied();
  assert.deepEqual([(await rowOf(id)).host, (await rowOf(id)).epoch, isMarked(b, id)], ["b", 2, false]);
  await seconds("a to be drained", async () => {
    const [row] = await sql.query<{ state: string }>("SELECT state FROM hosts WHERE name = 'a'", [], about);
    return row?.state === "drained";
  });
  assert.deepEqual(await heldBy(sql, "a", 9), { count: 0, staying: 0, first: [] });
  const entries = (host: Host) => host.service.audit.list("team-red", { limit: 9 }).entries;
  const byService = () => [...entries(a), ...entries(b)].filter(({ keyId }) => keyId === "");
  await waitFor("the audit entries of both hosts", () => byService().length === 2);
  assert.deepEqual(
    byService().map(({ action, subject }) => [action, subject]),
    [
      ["capsule.pause", "drain"],
      ["capsule.resume", "drain"],
    ],
  );
});

test("idle ones go first, the longest idle one at the head, and a command is waited for, but no third of the deadline", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds } = cluster;
  const ids: string[] = [];
  for (let count = 0; count < 7; count++) ids.push(await created(a));
  const [ending, endless, ...idle] = ids as [string, string, ...string[]];
  for (const id of idle) {
    a.clock.advance(1);
    a.service.capsules.ping("team-red", id);
  }
  const ends = [ending, endless].map((id) => a.service.activity.began(id));
  const letGo = held(a);
  await drainHost(sql, "a", 6_000_000);
  await second();
  await second();
  const paused = () => ids.filter((id) => statusAt(a, id) === "paused");
  await waitFor("four to be paused", () => paused().length === 4);
  await second();
  assert.deepEqual(paused(), idle.slice(0, 4));
  letGo();
  await seconds("the idle ones to move", () => idle.every((id) => runsAt(b, id)));
  await second();
  assert.deepEqual([statusAt(a, ending), statusAt(a, endless)], ["running", "running"]);
  ends[0]!();
  await seconds("the one to move whose command has ended", () => runsAt(b, ending));
  assert.equal(statusAt(a, endless), "running");
  await sql.query("UPDATE hosts SET drain_until = drain_until - 2001000 WHERE name = 'a'", [], about);
  await seconds("the other one to move", () => runsAt(b, endless));
  for (const id of ids) assertOneOwner(id, a, b);
});

test("nothing resumes a capsule that is on its way, and it is shown as paused", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds } = cluster;
  const [plain, resuming] = [await created(a), await created(a, { auto_resume: true })];
  const letGo = held(a);
  await drainHost(sql, "a");
  await second();
  await seconds("both to be uploaded", () => a.uploads.underWay.size === 2);
  for (const id of [plain, resuming]) {
    for (const path of ["exec", "resume", "pause"]) {
      for (const host of [a, b]) {
        const body = path === "exec" ? { cmd: "true" } : undefined;
        const { status, json, headers } = await host.call("POST", `/v1/capsules/${id}/${path}`, body);
        assert.deepEqual([status, json.error.code, headers["retry-after"]], [503, "unavailable", "1"], path);
        assert.match(json.error.message, /is being moved to another host/);
      }
    }
    const shown = await b.call("GET", `/v1/capsules/${id}`);
    assert.deepEqual([shown.status, shown.json.status, shown.json.host], [200, "paused", "a"]);
  }
  assert.equal(a.uploads.underWay.size, 2);
  letGo();
  await seconds("both to run at b", () => runsAt(b, plain) && runsAt(b, resuming));
  assert.equal((await a.call("DELETE", `/v1/capsules/${plain}`)).status, 204);
});

test("a capsule that is destroyed on its way is gone", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds } = cluster;
  const id = await created(a);
  held(a);
  await drainHost(sql, "a");
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  assert.equal((await b.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  await a.cluster.moved();
  await second();
  assert.deepEqual(
    [a.machine.folders.has(id), b.machine.folders.has(id), a.service.store.moving.size],
    [false, false, 0],
  );
  assert.equal((await b.call("GET", `/v1/capsules/${id}`)).status, 404);
});

test("an upload that has not ended at the deadline is given up, and the capsule runs on; a further drain moves it", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds, rowOf } = cluster;
  const id = await created(a);
  const letGo = held(a);
  await drainHost(sql, "a", 600_000);
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  assert.ok(isMarked(a, id));
  await sql.query("UPDATE hosts SET drain_until = now_ms() WHERE name = 'a'", [], about);
  await seconds("it to run here", () => runsAt(a, id));
  await seconds("the reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
  const { count, first } = await heldBy(sql, "a", 9);
  assert.deepEqual([count, first[0]?.stays], [1, "it was not in the bucket before the deadline"]);
  assert.deepEqual([isMarked(a, id), a.service.store.moving.size, (await rowOf(id)).epoch], [false, 0, 1]);
  await second();
  assert.ok(runsAt(a, id));
  letGo();
  await drainHost(sql, "a");
  assert.equal((await heldBy(sql, "a", 9)).staying, 0);
  await seconds("it to run at b", () => runsAt(b, id));
  assertOneOwner(id, a, b);
});

test("a reason is told in a later second where a status copy has locked the capsule's row", { skip }, async () => {
  await using cluster = await world();
  const { sql, url, host, second, seconds } = cluster;
  const a = await host("a");
  await second();
  const id = await created(a);
  const copying = new pg.Client(url);
  await copying.connect();
  await copying.query("BEGIN");
  await copying.query("SELECT id FROM capsules WHERE id = $1 FOR UPDATE", [id]);
  await drainHost(sql, "a");
  for (let rounds = 0; rounds < 3; rounds++) await second();
  assert.equal((await heldBy(sql, "a", 9)).staying, 0);
  await copying.end();
  await seconds("the reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
});

test("without a host that could take them capsules run on, with the reason, until there is one", { skip }, async () => {
  await using cluster = await world();
  const { sql, host, second, seconds } = cluster;
  const a = await host("a");
  await second();
  const id = await created(a);
  await drainHost(sql, "a");
  await seconds("the reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
  assert.deepEqual((await heldBy(sql, "a", 9)).first, [
    { id, status: "running", stays: "no other host is up that takes capsules" },
  ]);
  assert.deepEqual([runsAt(a, id), a.uploads.begun.length], [true, 0]);
  const b = await host("b");
  await seconds("it to move", () => runsAt(b, id));
});

test("what no host takes comes back at the deadline, and runs where it was", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, seconds, rowOf } = cluster;
  b.files.isOther = true;
  const id = await created(a);
  await drainHost(sql, "a");
  await seconds("it to be released", async () => (await rowOf(id)).host === null);
  const { count, staying } = await heldBy(sql, "a", 9);
  assert.deepEqual([count, staying], [1, 0], "it is counted until a host has it");
  await seconds("b to have refused it", () => b.cluster.acquiring.counts.refused > 0);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/exec`, { cmd: "true" })).status, 503);
  await sql.query("UPDATE hosts SET drain_until = now_ms() WHERE name = 'a'", [], about);
  await seconds("it to run at a", () => runsAt(a, id));
  assertOneOwner(id, a, b);
  await seconds("the reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
  assert.match((await heldBy(sql, "a", 9)).first[0]!.stays!, /was saved on another machine/);
  await a.copied();
  assert.deepEqual([(await rowOf(id)).host, (await rowOf(id)).epoch], ["a", 2]);
});

test("a paused capsule that cannot be uploaded stays, with the reason, and is moved once it runs", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds } = cluster;
  const [refused, failing] = [await created(a), await created(a)];
  for (const id of [refused, failing]) assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.copied();
  a.uploads.moment = async (id) => {
    throw id === refused ? new CapsuleError("conflict", "its image has other bytes") : new Error("the disk is broken");
  };
  await drainHost(sql, "a");
  const staysOf = async (id: string) => (await heldBy(sql, "a", 9)).first.find((each) => each.id === id)?.stays;
  const triesOf = (id: string) => a.uploads.begun.filter((each) => each === id).length;
  await seconds("the first reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
  assert.equal(await staysOf(refused), "its image has other bytes");
  await seconds("the second attempt", () => triesOf(failing) === 2);
  await second();
  assert.equal(await staysOf(failing), null, "it may leave soon");
  await seconds("the second reason", async () => (await heldBy(sql, "a", 9)).staying === 2);
  assert.deepEqual([await staysOf(failing), triesOf(failing)], ["the disk is broken", 3]);
  held(a);
  assert.equal((await a.call("POST", `/v1/capsules/${failing}/resume`)).status, 200);
  await seconds("it to be uploaded for its move", () => a.uploads.underWay.has(failing));
  await second();
  assert.equal(await staysOf(failing), null);
  a.uploads.moment = () => Promise.resolve();
  await seconds("the other one to leave", () => a.service.store.get(refused) === undefined);
  assert.equal(b.service.store.get(refused), undefined, "it stays paused");
});

test("a paused capsule whose template was deleted stays, and nothing else of the host does", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, sql, second } = cluster;
  const made = await a.call("POST", "/v1/snapshots", { sandbox_id: await created(a), name: "tools" });
  assert.equal(made.status, 201);
  const id = await created(a, { template: "tools" });
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.copied();
  assert.equal((await a.call("DELETE", "/v1/snapshots/tools")).status, 204);
  await drainHost(sql, "a");
  const expected = { count: 1, staying: 1, first: [{ id, status: "paused", stays: "its template tools was deleted" }] };
  assert.deepEqual(await heldBy(sql, "a", 9), expected);
  for (let rounds = 0; rounds < 8; rounds++) await second();
  assert.deepEqual([await heldBy(sql, "a", 9), a.uploads.begun], [expected, []]);
});

test("what nobody may resume stays paused, and is a paused capsule as any", { skip }, async () => {
  await using cluster = await twoHosts({ running_vcpus_max: 1 });
  const { a, b, sql, seconds, rowOf } = cluster;
  const id = await created(a);
  const letGo = held(a);
  await drainHost(sql, "a");
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  await a.copied();
  const other = await created(b); // the team fills its quota
  letGo();
  await seconds("it to be released", async () => (await rowOf(id)).host === null);
  await sql.query("UPDATE hosts SET drain_until = now_ms() WHERE name = 'a'", [], about);
  await seconds("the move to end", async () => (await rowOf(id)).moving === null);
  assert.deepEqual([(await rowOf(id)).status, (await rowOf(id)).host], ["paused", null]);
  const refused = await b.call("POST", `/v1/capsules/${id}/resume`);
  assert.deepEqual([refused.status, refused.json.error.code], [429, "quota_exceeded"]);
  assert.equal((await b.call("DELETE", `/v1/capsules/${other}`)).status, 204);
  assert.equal((await b.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
});

test("a host that takes capsules again resumes those that were on their way", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, sql, seconds } = cluster;
  const id = await created(a);
  held(a);
  await drainHost(sql, "a");
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  await resumeHost(sql, "a");
  await seconds("it to run", () => runsAt(a, id));
  assert.deepEqual([isMarked(a, id), a.service.store.moving.size], [false, 0]);
});

test("where its pause fails a capsule runs on, with the reason and no mark", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, sql, second, seconds } = cluster;
  const id = await created(a);
  a.machine.before = (verb) => {
    if (verb === "save") throw new Error("the disk is full");
  };
  await drainHost(sql, "a");
  await seconds("the reason", async () => (await heldBy(sql, "a", 9)).staying === 1);
  assert.match((await heldBy(sql, "a", 9)).first[0]!.stays!, /could not be paused/);
  assert.deepEqual([runsAt(a, id), isMarked(a, id), a.service.store.moving.size], [true, false, 0]);
  a.machine.before = () => {};
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await second();
  assert.deepEqual([statusAt(a, id), isMarked(a, id)], ["paused", false]);
});

test("what its team has paused is released, and stays paused", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds, rowOf } = cluster;
  const id = await created(a);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await drainHost(sql, "a");
  await seconds("it to be released", async () => (await rowOf(id)).host === null);
  await second();
  assert.deepEqual([(await rowOf(id)).moving, (await rowOf(id)).status, statusAt(b, id)], [null, "paused", undefined]);
  const { status, json } = await b.call("POST", `/v1/capsules/${id}/exec`, { cmd: "true" });
  assert.deepEqual([status, json.error.code], [409, "invalid_state"]);
});

test("a daemon that ends while a capsule is paused for its move goes on with it", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds } = cluster;
  const id = await created(a);
  held(a);
  await drainHost(sql, "a");
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  const again = await cluster.restarted(a);
  const refused = await again.call("POST", `/v1/capsules/${id}/resume`);
  assert.deepEqual(
    [refused.status, refused.json.error.code],
    [503, "unavailable"],
    "until it knows whether it is drained",
  );
  await seconds("it to run at b", () => runsAt(b, id));
  await second();
  assertOneOwner(id, again, b);
});

for (const step of ["releasing", "released"]) {
  test(`a daemon that ends at the step ${step} goes on with the move`, { skip }, async () => {
    const { step: onStep, hasEnded } = endingAt(step);
    await using cluster = await twoHosts({}, { a: { step: onStep } });
    const { a, b, sql, seconds } = cluster;
    const id = await created(a);
    await drainHost(sql, "a");
    await seconds("the step", hasEnded);
    const again = await cluster.restarted(a);
    await seconds("it to run at b", () => runsAt(b, id));
    assertOneOwner(id, again, b);
  });
}

test("a host that ends when it has acquired the capsule gives it back, and it is placed again", { skip }, async () => {
  const { step, hasEnded } = endingAt("acquired");
  await using cluster = await twoHosts({}, { b: { step } });
  const { a, b, sql, seconds } = cluster;
  const id = await created(a);
  await drainHost(sql, "a");
  await seconds("the step", hasEnded);
  const again = await cluster.restarted(b);
  await seconds("it to run at b", () => runsAt(again, id));
  assertOneOwner(id, a, again);
});

test("a host that ends before the resume resumes it in its next life, and an attempt that fails is repeated", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, seconds } = cluster;
  const id = await created(a);
  let attempts = 0;
  b.machine.before = (verb) => {
    if (verb !== "restore") return;
    attempts += 1;
    throw new Error("no");
  };
  await drainHost(sql, "a");
  await seconds("two attempts", () => attempts > 1);
  await waitFor("the attempt to end", () => b.service.store.get(id)?.intent === null);
  assert.deepEqual([statusAt(b, id), isMarked(b, id)], ["paused", true]);
  b.machine.before = () => {};
  const again = await cluster.restarted(b);
  await seconds("it to run at b", () => runsAt(again, id));
  assertOneOwner(id, a, again);
});

test("what a host has released that never came back is moved by the others", { skip }, async () => {
  const { step, hasEnded } = endingAt("released");
  await using cluster = await twoHosts({}, { a: { step } });
  const { a, b, sql, seconds, rowOf } = cluster;
  const id = await created(a);
  await drainHost(sql, "a");
  await seconds("the step", hasEnded);
  await cluster.dies(a);
  assert.deepEqual([(await rowOf(id)).host, (await rowOf(id)).moving], [null, true]);
  await seconds("it to run at b", () => runsAt(b, id));
});

test("a retention does not count on the way", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, second, seconds, rowOf } = cluster;
  const id = await created(a, { retention_sec: 60 });
  b.files.isOther = true;
  const letGo = held(a);
  await drainHost(sql, "a");
  await seconds("it to be uploaded", () => a.uploads.underWay.has(id));
  a.clock.advance(120_000);
  await second();
  assert.equal(statusAt(a, id), "paused");
  letGo();
  await seconds("it to be released", async () => (await rowOf(id)).host === null);
  await sql.query("UPDATE capsules SET last_updated = 1 WHERE id = $1", [id], about);
  assert.deepEqual(await sql.call("end_released", [9], about), []);
  b.files.isOther = false;
  await seconds("it to run at b", () => runsAt(b, id));
});
