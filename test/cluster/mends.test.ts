/** Teams that end on one host while another is busy with them, undone creates, and entries that PostgreSQL cannot keep. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setLimit } from "../../src/cluster/shared.ts";
import { TeamRows } from "../../src/db/team-rows.ts";
import { keys } from "../api.ts";
import { addTeams, created, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function oneHost() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const a = await hostOfCluster(database, "a");
  return {
    ...{ database, a },
    async [Symbol.asyncDispose]() {
      for (const each of [a, database]) await each[Symbol.asyncDispose]();
    },
  };
}

test("a team that is deleted while its capsule ends loses its keys and its name at once", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const { sql } = database;
  const id = await created(a);
  await sql.call("delete_capsule", [id, 1, "a"], about); // its row here ends later
  await sql.call("delete_team", ["team-red", Date.now()], about);
  await sql.call("ensure_team", ["team-red2", "red", 2], about);
  const key = { id: "key-2", team_id: "team-red2", label: "", hash: "ab".repeat(32), created_at: 1 };
  await sql.call("add_key", [JSON.stringify(key), null, 0], about);
  await a.second();
  assert.equal((await a.call("GET", "/v1/session", undefined, { "x-api-key": keys.red })).status, 401);
  const teamRows = new TeamRows(a.database);
  assert.equal(teamRows.named("red")?.id, "team-red2");
  assert.notEqual(teamRows.liveKeyById("key-2", Date.now()), undefined);
  a.clock.advance(60_000);
  await a.cluster.settled();
  await a.service.settled();
  await a.second();
  assert.equal(
    teamRows.list().some((team) => team.id === "team-red"),
    false,
  );
});

test("a database that was put back is read anew, and keys that it lacks end", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const made = await a.call("POST", "/v1/keys", { name: "ci" });
  const key = { "x-api-key": made.json.key };
  await a.second();
  assert.equal((await a.call("GET", "/v1/session", undefined, key)).status, 200);
  await database.sql.query("DELETE FROM keys WHERE id = $1", [made.json.id], about);
  await database.sql.query("UPDATE cluster SET catalog = catalog - 1", [], about);
  await a.second();
  assert.equal((await a.call("GET", "/v1/session", undefined, key)).status, 401);
  assert.equal((await a.call("GET", "/v1/session")).status, 200);
});

test("an undone create leaves no answer to its Idempotency-Key", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const row = a.service.store.get(await created(a))!;
  const lost = { ...row, id: "cl-lost", status: "starting" as const, intent: "create" as const, revision: 0 };
  const answer = { route: "/v1/capsules", key: "k", bodyHash: "h", status: 201, answer: "{}", keepMs: 86_400_000 };
  await a.cluster.decided.create(lost, () => answer);
  await new Promise(setImmediate);
  a.clock.advance(60_000);
  await a.cluster.settled();
  assert.deepEqual(await database.sql.query("SELECT key FROM idempotency", [], about), []);
});

test("a capsule's own name is decided anew, since another one may be the cluster's", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const id = await created(a, { name: "api" });
  const known = () => database.sql.query<{ name: string; copy: number }>("SELECT name, copy FROM capsules", [], about);
  const { copy } = (await known())[0]!;
  await database.sql.call("rename_capsule", [id, 1, "a", "web", copy], about); // whose answer did not come
  const renamed = await a.call("PATCH", `/v1/capsules/${id}`, { name: "api" });
  assert.deepEqual([renamed.status, renamed.json.name], [200, "api"]);
  assert.equal((await known())[0]?.name, "api");
  a.clock.advance(60_000);
  await a.cluster.settled();
  assert.equal(a.service.store.get(id)?.name, "api");
});

test("a template's name is free as soon as another host has deleted it", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const captured = async () => await a.call("POST", "/v1/snapshots", { sandbox_id: await created(a), name: "tools" });
  assert.equal((await captured()).status, 201);
  assert.equal((await captured()).json.error.code, "template_name_taken");
  const { storage } = a.service.templateRows.named("team-red", "tools")!;
  await database.sql.call("retire_template", [storage, 9], about);
  assert.equal((await captured()).status, 201);
  assert.notEqual(a.service.templateRows.named("team-red", "tools")?.storage, storage);
});

test("a template's name that PostgreSQL cannot have is the name of no template", { skip }, async () => {
  await using cluster = await oneHost();
  const { a } = cluster;
  const { status, json } = await a.call("DELETE", "/v1/snapshots/a%00");
  assert.deepEqual([status, json.error.code], [404, "not_found"]);
});

test("a resume and a name that a status copy overtakes are decided all the same", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const id = await created(a);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.copied();
  const overtake = () =>
    database.sql.query("UPDATE capsules SET copy = $1 WHERE id = $2", [a.cluster.copies.next() + 2, id], about);
  await overtake();
  assert.equal((await a.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
  await a.copied();
  await overtake();
  assert.equal((await a.call("PATCH", `/v1/capsules/${id}`, { name: "web" })).status, 200);
});

test("a request with a NUL in its path holds up no entry of the audit log", { skip }, async () => {
  await using cluster = await oneHost();
  const { a } = cluster;
  const { auditRows } = a.service;
  const entry = { at: 1, teamId: "team-red", keyId: "key-red", keyName: "first", address: "", status: 404 };
  const rest = { action: "capsule.destroy" as const, exitCode: null };
  auditRows.append([
    { ...entry, ...rest, capsuleId: "a\0b", subject: "\ud800" },
    { ...entry, ...rest, capsuleId: "later", subject: null },
  ]);
  const { json } = await a.call("GET", "/v1/audit?limit=2");
  assert.deepEqual(
    json.entries.map((each: { capsule_id: string }) => each.capsule_id),
    ["later", "a\ufffdb"],
  );
});

test("a capsule that is another host's by the database is stopped, keeps its files, and is an alarm", {
  skip,
}, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const [foreign, unknown, own] = [await created(a), await created(a), await created(a)];
  assert.equal(a.cluster.report().contradictions, 0);
  await database.sql.query("UPDATE capsules SET host = 'b' WHERE id = $1", [foreign], about);
  await database.sql.query("DELETE FROM capsules WHERE id = $1", [unknown], about);
  a.clock.advance(60_000);
  await a.cluster.settled();
  await a.service.settled();
  assert.equal(a.cluster.report().contradictions, 2);
  const { status, errorReason } = a.service.store.get(foreign)!;
  assert.deepEqual([status, errorReason], ["error", "the cluster says that b holds it"]);
  assert.deepEqual([...a.machine.guests.keys()].sort(), [own, unknown].sort());
  assert.equal(a.machine.folders.has(foreign), true);
  const again = await a.call("POST", `/v1/capsules/${foreign}/start`);
  assert.deepEqual([again.status, again.json.error.code], [503, "unavailable"]);
  assert.equal(a.machine.guests.has(foreign), false);
  await database.sql.query("UPDATE capsules SET host = 'a' WHERE id = $1", [foreign], about);
  a.clock.advance(60_000);
  await a.cluster.settled();
  assert.equal(a.cluster.report().contradictions, 1);
});

test("limits that are changed in the database are followed", { skip }, async () => {
  const database = await clusterDatabase(server, { capsules_max: 3 });
  await using _closed = database;
  await addTeams(database);
  const read: unknown[] = [];
  await using a = await hostOfCluster(database, "a", { onLimits: (limits) => read.push(limits.capsules_max) });
  assert.deepEqual(read, [3]);
  await a.second();
  await setLimit(database.sql, "capsules_max", 1);
  await a.second();
  assert.deepEqual(read, [3, 1]);
  await created(a);
  assert.equal((await a.call("POST", "/v1/capsules")).json.error.code, "quota_exceeded");
});

test("a capsule is not copied while a decision about it is asked for", { skip }, async () => {
  await using cluster = await oneHost();
  const { a, database } = cluster;
  const id = await created(a);
  const status = async () => (await database.sql.query("SELECT status FROM capsules", [], about))[0]?.status;
  const release = a.cluster.copies.hold(id);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.copied();
  assert.equal(await status(), "running");
  release();
  await a.copied();
  assert.equal(await status(), "paused");
});
