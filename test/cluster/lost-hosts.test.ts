/** Hosts that neither PostgreSQL nor the other hosts hear of: what they held, and that they come back. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { declareGone, forgetPlace, resumeHost } from "../../src/cluster/host-list.ts";
import { keptAnswer } from "../../src/cluster/shared.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { late } from "./late.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase, joining } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const lostSec = 20;

/** The time of `a` alone passes: no other host sends a heartbeat. */
async function twoHosts(limits = {}) {
  const database = await clusterDatabase(server, limits);
  await addTeams(database);
  const a = await hostOfCluster(database, "a", { hostLostSec: lostSec });
  const b = await hostOfCluster(database, "b");
  await a.second();
  return {
    ...{ database, a, b },
    async [Symbol.asyncDispose]() {
      for (const each of [a, b, database]) await each[Symbol.asyncDispose]();
    },
  };
}

async function seconds(host: FakeHostOfCluster, count: number): Promise<void> {
  for (let passed = 0; passed < count; passed++) await host.second();
}

async function listed(host: FakeHostOfCluster): Promise<Record<string, [status: string, reason: string | null]>> {
  const { json } = await host.call("GET", "/v1/capsules");
  const rows = json as { id: string; status: string; error_reason: string | null }[];
  return Object.fromEntries(rows.map(({ id, status, error_reason }) => [id, [status, error_reason]]));
}

test("what runs on a lost host is in error and takes no quota, what is paused there stays paused", {
  skip,
}, async () => {
  await using cluster = await twoHosts({ running_vcpus_max: 2 });
  const { a, b, database } = cluster;
  const [paused, running] = [await created(b), await created(b)];
  assert.equal((await b.call("POST", `/v1/capsules/${paused}/pause`)).status, 200);
  await b.copied();
  const other = await created(a);
  assert.equal((await a.call("POST", "/v1/capsules")).json.error.code, "quota_exceeded");
  const [before] = await database.sql.query("SELECT version FROM teams WHERE name = 'red'", [], about);
  await b.kill();
  await seconds(a, lostSec - 1);
  assert.deepEqual((await listed(a))[running], ["running", null]);
  await seconds(a, 2);
  assert.deepEqual(await listed(a), {
    [other]: ["running", null],
    [running]: ["error", "host b was lost"],
    [paused]: ["paused", null],
  });
  const [row] = await database.sql.query<{ host: string; epoch: number; version: number }>(
    "SELECT host, epoch, version FROM capsules WHERE id = $1",
    [running],
    about,
  );
  assert.deepEqual([row?.host, row?.epoch], ["b", 1]);
  assert.ok(row!.version > Number(before?.version), "streams of events tell it");
  assert.equal((await a.call("POST", "/v1/capsules")).status, 201);

  await using again = await hostOfCluster(database, "b", { database: b.database, machine: b.machine });
  await again.copied();
  assert.deepEqual((await listed(a))[running], ["running", null]);
  assert.deepEqual((await listed(a))[paused], ["paused", null]);
});

test("a host that answers is not lost, however long PostgreSQL has not heard of it", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(b);
  await seconds(a, lostSec * 2);
  assert.equal(a.cluster.membership.alive("b"), undefined);
  assert.deepEqual((await listed(a))[id], ["running", null]);
});

test("a lost host is told of again, since a status copy of it may have come late", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const id = await created(b);
  await b.kill();
  await seconds(a, lostSec + 1);
  assert.equal((await listed(a))[id]?.[0], "error");
  const late = { ...b.service.store.get(id)!, revision: 9 };
  const columns = { id, team_id: late.teamId, epoch: 1, copy: 2 ** 40, revision: 9, status: "running" };
  const [row] = await database.sql.query("SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1", [id], about);
  const copy = JSON.stringify([{ ...(row?.row as object), ...columns }]);
  assert.equal(await database.sql.call("copy_status", [copy, "b"], about), 1);
  assert.equal((await listed(a))[id]?.[0], "running");
  await seconds(a, 61);
  assert.equal((await listed(a))[id]?.[0], "error");
});

test("a host that has not noticed that it was lost shows its capsules again within a minute", { skip }, async () => {
  await using cluster = await twoHosts();
  const { b, database } = cluster;
  const { sql } = database;
  const id = await created(b);
  const [host] = await sql.query<{ heartbeat: number }>("SELECT heartbeat FROM hosts WHERE name = 'b'", [], about);
  const lose = (epoch: number, heartbeat: number) => sql.call("lose_host", ["b", epoch, heartbeat, 10], about);
  const { epoch } = b.cluster.membership.me;
  assert.equal(await lose(epoch, host!.heartbeat - 1), null);
  assert.equal(await lose(epoch - 1, host!.heartbeat), null);
  assert.equal(await lose(epoch, host!.heartbeat), 1);
  assert.equal(await lose(epoch, host!.heartbeat), 0);
  assert.equal((await listed(b))[id]?.[0], "running", "by its own rows");
  await seconds(b, 62);
  await b.copied();
  const rows = await sql.query("SELECT status, lost_at FROM capsules WHERE id = $1", [id], about);
  assert.deepEqual(rows, [{ status: "running", lost_at: null }]);
});

test("a create that its lost host had not told of is undone when the host comes back", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const row = b.service.store.get(await created(b))!;
  const untold = { ...row, id: "cl-0000000000000000000000001", status: "starting" as const, intent: "create" as const };
  const keyed = { route: "/v1/capsules", key: "k", bodyHash: "h", status: 201, answer: "{}", keepMs: 86_400_000 };
  await b.cluster.decided.create({ ...untold, revision: 0 }, () => keyed);
  await b.kill();
  await seconds(a, lostSec + 1);
  assert.equal((await listed(a))[untold.id]?.[0], "error");
  const request = { teamId: row.teamId, route: keyed.route, key: "k" };
  assert.equal((await keptAnswer(database.sql, request))?.isDoubtful, true);
  await using again = await hostOfCluster(database, "b", { database: b.database, machine: b.machine });
  await again.second();
  assert.equal((await listed(a))[untold.id], undefined);
  assert.equal(again.cluster.report().contradictions, 0);
});

test("a host that is gone never joins again, and all that it holds is in error", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const { sql } = database;
  const [paused, running] = [await created(b), await created(b)];
  assert.equal((await b.call("POST", `/v1/capsules/${paused}/pause`)).status, 200);
  await b.copied();
  const own = await created(a);
  await assert.rejects(declareGone(sql, "x", 1), { code: "not_found" });
  const [counter] = await sql.query<{ heartbeat: number }>("SELECT heartbeat FROM hosts WHERE name = 'b'", [], about);
  await b.second();
  await assert.rejects(sql.call("declare_gone", ["b", counter!.heartbeat], about), /host b is up/);
  assert.equal(await declareGone(sql, "b", 1), 2);
  assert.equal(await declareGone(sql, "b", 1), 0);
  assert.equal(await resumeHost(sql, "b"), "gone");
  assert.deepEqual(await listed(a), {
    [own]: ["running", null],
    [running]: ["error", "host b is gone"],
    [paused]: ["error", "host b is gone"],
  });
  assert.equal((await b.call("POST", `/v1/capsules/${running}/pause`)).status, 200);
  await b.copied();
  assert.equal((await listed(a))[running]?.[0], "error", "no copy is later");
  await b.second();
  assert.equal(b.refusals.length, 1);
  await assert.rejects(sql.call("join_host", joining("b"), about), /host b was declared gone/);
  await a.second();
  assert.equal(a.cluster.membership.alive("b", true), undefined);
  assert.equal(await resumeHost(sql, "a"), "up");
  assert.equal(await resumeHost(sql, "x"), undefined);
  await sql.query("UPDATE hosts SET state = 'drained' WHERE name = 'a'", [], about);
  assert.equal(await resumeHost(sql, "a"), "up");
});

test("a host that was lost before is gone with all that it holds, and no copy of it is later", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const { sql } = database;
  const running = await created(b);
  await b.copied();
  const [known] = await sql.query<{ epoch: number; heartbeat: number }>(
    "SELECT epoch, heartbeat FROM hosts WHERE name = 'b'",
    [],
    about,
  );
  assert.equal(await sql.call("lose_host", ["b", known!.epoch, known!.heartbeat, 10], about), 1);
  assert.deepEqual(await listed(a), { [running]: ["error", "host b was lost"] });
  assert.equal(await declareGone(sql, "b", 1), 1);
  assert.equal(await declareGone(sql, "b", 1), 0);
  assert.equal((await b.call("POST", `/v1/capsules/${running}/pause`)).status, 200);
  await b.copied();
  assert.deepEqual(await listed(a), { [running]: ["error", "host b is gone"] });
});

test("a capsule of a lost host is shown as its row is, started by nobody, and destroyed at any host", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const [id, named, paused] = [await created(b), await created(b, { name: "web" }), await created(b)];
  assert.equal((await b.call("POST", `/v1/capsules/${paused}/pause`)).status, 200);
  await b.copied();
  await b.kill();
  const assertAway = async (method: "GET" | "POST", path: string) => {
    const { status, json } = await a.call(method, path);
    assert.deepEqual([status, json.error?.code, json.error?.details], [503, "unavailable", { host: "b" }], path);
  };
  await seconds(a, 13);
  await assertAway("GET", `/v1/capsules/${id}`);
  assert.equal((await a.call("DELETE", "/v1/capsules/web")).status, 204);
  assert.equal((await a.call("GET", `/v1/capsules/${named}`)).status, 404);
  assert.equal((await a.call("DELETE", "/v1/capsules/web")).status, 404);
  assert.equal(a.service.store.wasDestroyed(named), true);

  await seconds(a, lostSec - 12);
  const shown = (await a.call("GET", `/v1/capsules/${id}`)).json;
  assert.deepEqual([shown.status, shown.error_reason, shown.host], ["error", "host b was lost", "b"]);
  assert.equal((await a.call("GET", `/v1/capsules/${id}?wait=error`)).json.status, "error");
  await assertAway("POST", `/v1/capsules/${id}/start`);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).json.error.code, "invalid_state");
  await assertAway("GET", `/v1/capsules/${paused}`);
  await assertAway("POST", `/v1/capsules/${paused}/resume`);
  assert.equal((await a.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  assert.deepEqual(Object.keys(await listed(a)), [paused]);

  await using again = await hostOfCluster(database, "b", { database: b.database, machine: b.machine });
  await again.second();
  await again.service.settled();
  assert.deepEqual(
    again.service.store.all().map((row) => row.id),
    [paused],
  );
});

test("a host that is up keeps its place", { skip }, async (t) => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const place = async () => (await database.sql.query("SELECT place FROM hosts WHERE name = 'b'", [], about))[0]?.place;
  late(t, a, "SELECT name, heartbeat FROM hosts", () => b.second());
  await assert.rejects(forgetPlace(a.sql, "b", 1), { code: "conflict", message: "host b is up" });
  assert.equal(await place(), "place-b");
  await forgetPlace(a.sql, "b", 1);
  assert.equal(await place(), "");
  await assert.rejects(forgetPlace(a.sql, "x"), { code: "not_found" });
});
