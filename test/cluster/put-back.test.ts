/** A database that was put back: it has forgotten what it had committed, and its hosts tell it. */

import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Postgres } from "../../src/cluster/postgres.ts";
import { confirmPlace } from "../../src/cluster/put-back.ts";
import { columnsOf } from "../../src/cluster/rows.ts";
import { migrate, steps } from "../../src/cluster/schema/migration.ts";
import { restoredDumps } from "../../src/cluster/schema/restored-dumps.ts";
import { setLimit } from "../../src/cluster/shared.ts";
import { keys } from "../api.ts";
import { EventStream } from "../event-stream.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { waitFor } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { late } from "./late.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase, clusterId, creating, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  await database.sql.query("UPDATE hosts SET state = 'gone' WHERE name = 'c'", [], about);
  const a = await hostOfCluster(database, "a");
  const b = await hostOfCluster(database, "b");
  return {
    ...{ database, a, b },
    async [Symbol.asyncDispose]() {
      for (const each of [a, b, database]) await each[Symbol.asyncDispose]();
    },
  };
}

/** Seconds pass until the host has seen that. Its connections end with the server. */
function until(host: FakeHostOfCluster, said: string, isTrue: () => boolean): Promise<unknown> {
  return waitFor(`${host.name} ${said}`, async () => {
    await host.second();
    return isTrue();
  });
}

const hasAsserted = async (host: FakeHostOfCluster) => {
  await until(host, "to see it", () => host.cluster.membership.isPutBack);
  await waitFor(`${host.name} to have told`, async () => {
    await host.second();
    const [row] = await host.sql.query<{ told: boolean }>(
      "SELECT asserted_timeline IS NOT DISTINCT FROM database_place() AS told FROM hosts WHERE name = $1",
      [host.name],
      about,
    );
    return row?.told;
  });
};

const nameOf = (json: { id: string; name: string | null }) => [json.id, json.name];

test("what a database that was put back has forgotten is told by the hosts before anything is decided", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const kept = await created(a);
  const former = await created(a, { name: "web" });
  await server.save();
  const made = await waitFor("a create", () => created(a).catch(() => undefined));
  assert.equal((await a.call("DELETE", `/v1/capsules/${former}`)).status, 204);
  await a.service.settled();
  const web = await created(b, { name: "web" });
  assert.equal((await b.call("POST", `/v1/capsules/${web}/pause`)).status, 200);
  const captured = await created(a);
  const template = { sandbox_id: captured, name: "tools" };
  assert.equal((await a.call("POST", "/v1/snapshots", template)).status, 201);
  const key = (await a.call("POST", "/v1/keys", { name: "ci" })).json.key;
  await server.putBack();
  await waitFor("the catalog to have the number again", () =>
    setLimit(database.sql, "capsules_max", 99).then(
      () => true,
      () => undefined,
    ),
  );

  await hasAsserted(b);
  await until(a, "to see it", () => a.cluster.membership.isPutBack);
  const refusals = await Promise.all([
    a.call("POST", "/v1/capsules"),
    a.call("DELETE", `/v1/capsules/${kept}`),
    a.call("PATCH", `/v1/capsules/${kept}`, { name: "other" }),
    a.call("POST", "/v1/keys", { name: "ci" }),
    a.call("POST", "/v1/snapshots", { sandbox_id: kept, name: "more" }),
    b.call("DELETE", "/v1/snapshots/tools").then((reply) => (reply.status === 404 ? undefined : reply)),
  ]);
  for (const reply of refusals.filter((each) => each !== undefined))
    assert.deepEqual([reply.status, reply.json.error.code], [503, "unavailable"], JSON.stringify(reply.json));
  const health = (await a.call("GET", "/healthz")).json;
  assert.equal(health.creates, false);
  assert.match(health.reasons.join(), /was put back/);
  assert.equal(a.cluster.report().isPutBack, true);
  assert.equal((await a.call("GET", "/v1/session", undefined, { "x-api-key": key })).status, 401, "it was forgotten");
  assert.equal((await a.call("POST", `/v1/capsules/${made}/pause`)).status, 200);
  assert.equal((await a.call("POST", `/v1/capsules/${made}/resume`)).status, 200);

  await hasAsserted(a);
  for (let passed = 0; passed < 11; passed++) await b.second(); // the name is free by now
  const confirmed = await confirmPlace(database.sql);
  assert.equal(confirmed.was, "confirmed");
  const changed = confirmed.changes.map(({ id, what, host }) => `${what} ${id} ${host}`);
  assert.deepEqual(
    changed.filter((each) => !each.startsWith("template")).sort(),
    [`destroyed ${former} a`, `held ${made} a`, `held ${web} b`].sort(),
  );
  assert.equal(changed.length, 4);
  assert.equal((await confirmPlace(database.sql)).was, "own");

  for (const host of [a, b]) {
    await until(host, "to go on", () => !host.cluster.membership.isPutBack);
    await host.copied();
  }
  assert.deepEqual(
    (await b.call("GET", "/v1/capsules")).json.map(nameOf).sort(),
    [
      [kept, null],
      [made, null],
      [web, "web"],
    ].sort(),
  );
  assert.equal((await b.call("GET", `/v1/capsules/${web}`)).json.status, "paused");
  assert.deepEqual(
    (await a.call("GET", "/v1/snapshots?type=snapshot")).json.map((each: { name: string }) => each.name),
    ["tools"],
  );
  assert.equal((await a.call("POST", "/v1/capsules", { template: "tools" })).status, 201);
  assert.equal((await b.call("DELETE", `/v1/capsules/${web}`)).status, 204);
  assert.deepEqual(
    [a, b].map((host) => host.cluster.report().contradictions),
    [0, 0],
  );
  assert.equal((await a.call("GET", "/v1/session", undefined, { "x-api-key": keys.red })).status, 200);
});

for (const [into, isAnew] of [
  ["over its tables", false],
  ["into another database of its name", true],
] as const) {
  test(`a dump that is restored into the same server, ${into}, is a database that was put back`, { skip }, async () => {
    await using cluster = await twoHosts();
    const { a, b, database } = cluster;
    const kept = await created(a);
    const former = await created(a);
    const dump = server.dump(database.url);
    assert.equal((await a.call("DELETE", `/v1/capsules/${former}`)).status, 204);
    const made = await created(b);
    server.restore(database.url, dump, isAnew);
    for (const host of [a, b]) await until(host, "to see it", () => host.cluster.membership.isPutBack);
    assert.equal((await a.call("POST", "/v1/capsules")).status, 503);
    assert.equal((await a.call("DELETE", `/v1/capsules/${kept}`)).status, 503);
    const { epoch } = a.cluster.membership.me;
    const acquire = database.sql.call("acquire_capsule", [kept, 1, "a", epoch, null, 99], about);
    await assert.rejects(acquire, /was put back/);
    for (const host of [a, b]) await hasAsserted(host);
    const { was, changes } = await confirmPlace(database.sql);
    const told = changes.map(({ id, what, host }) => `${what} ${id} ${host}`);
    assert.deepEqual([was, told.sort()], ["confirmed", [`destroyed ${former} a`, `held ${made} b`].sort()]);
    for (const host of [a, b]) await until(host, "to go on", () => !host.cluster.membership.isPutBack);
    const after = await created(a);
    const listed = (await b.call("GET", "/v1/capsules")).json.map((each: { id: string }) => each.id);
    assert.deepEqual(listed.sort(), [kept, made, after].sort());
    assert.equal((await confirmPlace(database.sql)).was, "own");
  });
}

test("maintenance of a database leaves its place as it was", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const place = () => sql.query("SELECT database_place() AS place, is_own_place() AS own", [], about);
  const before = await place();
  for (const each of ["VACUUM FULL cluster", "REINDEX TABLE cluster", "CLUSTER cluster USING cluster_pkey"])
    await sql.query(each, [], about);
  await sql.query("ALTER TABLE cluster ALTER COLUMN catalog TYPE numeric, ADD COLUMN x text DEFAULT now()", [], about);
  assert.deepEqual(await place(), before);
  assert.equal(before[0]?.own, true);
});

for (const [of, timeline, own] of [
  ["a database of before", "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)", true],
  ["one that was put back, and not confirmed,", "'0'", false],
] as const) {
  test(`${of} has its place behind the step that adds its OIDs`, { skip }, async () => {
    const sql = await Postgres.open({ url: server.newDatabase(), ...patient });
    await using _closed = { [Symbol.asyncDispose]: () => sql.close() };
    const before = steps.indexOf(restoredDumps);
    await sql.transact(async (each) => {
      for (const step of steps.slice(0, before)) await each.query(step);
      await each.query(
        `INSERT INTO cluster (id, schema, schema_min, system_id, timeline, limits, created_at)
         VALUES ($1, $2, 1, (SELECT system_identifier::text FROM pg_control_system()), ${timeline}, '{}', 1)`,
        [clusterId, before],
      );
      assert.deepEqual((await each.query("SELECT is_own_place() AS own")).rows, [{ own }]);
      await migrate(each, clusterId);
    });
    assert.deepEqual(await sql.query("SELECT is_own_place() AS own", [], about), [{ own }]);
    assert.equal((await confirmPlace(sql)).was, own ? "own" : "confirmed");
    assert.deepEqual(await sql.query("SELECT is_own_place() AS own", [], about), [{ own: true }]);
  });
}

test("streams of events begin anew once a database that was put back is confirmed", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  for (const { app } of [a, b]) await app.listen({ host: "127.0.0.1", port: 0 });
  const streamOf = ({ app }: FakeHostOfCluster, lastId?: string) =>
    EventStream.open({ url: `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`, key: keys.red }, lastId);
  const kept = await created(a);
  await server.save();
  await waitFor("a create", () => created(a).catch(() => undefined));
  await using before = await streamOf(a);
  const forgotten = (await before.next())!.id;
  await server.putBack();
  for (const host of [a, b]) await hasAsserted(host);
  assert.equal((await confirmPlace(database.sql)).was, "confirmed");
  for (const host of [a, b]) await until(host, "to go on", () => !host.cluster.membership.isPutBack);
  // The stream that was open all the time: a version since then is a time.
  let told = (await before.next())!;
  while (told.name !== "reset" || Number(told.id) < Date.now() - 86_400_000) told = (await before.next())!;
  const anew = told.id;
  assert.equal((await a.call("POST", `/v1/capsules/${kept}/pause`)).status, 200);
  await a.copied();
  while (told.data.status !== "paused") told = (await before.next())!;
  // A stream that comes with an id that was given to another change, and one that comes with the reset's.
  await using after = await streamOf(b, forgotten);
  const first = (await after.next())!;
  assert.deepEqual([first.name, first.data], ["reset", { reason: "missed" }]);
  await using resumed = await streamOf(b, anew);
  assert.deepEqual([(await resumed.next())?.data.status], ["paused"]);
});

test("a place is not confirmed before each host that is not gone has told what it holds", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  await server.save();
  await server.putBack();
  const confirm = () => waitFor("an answer", () => confirmPlace(database.sql).catch(() => undefined));
  assert.deepEqual((await confirm()).silent, ["a", "b"]);
  await hasAsserted(a);
  assert.deepEqual((await confirm()).silent, ["b"]);
  await b.kill();
  const [host] = await database.sql.query<{ heartbeat: number }>(
    "SELECT heartbeat FROM hosts WHERE name = 'b'",
    [],
    about,
  );
  await database.sql.call("declare_gone", ["b", host!.heartbeat], about);
  assert.equal((await confirm()).was, "confirmed");
});

test("a host's word counts by its epoch, and not against a tombstone", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const ids = ["cl-1", "cl-2", "cl-3", "cl-4"];
  for (const id of ids) await sql.call("create_capsule", creating("b", capsuleRow(id)), about);
  await sql.call("delete_capsule", ["cl-4", 1, "b"], about);
  const rows = ids.map((id) => ({ ...columnsOf(capsuleRow(id, { status: "paused", intent: null })), copy: 9 }));
  const tell = (host: string, epochs: number[]) =>
    sql.call(
      "assert_held",
      [host, 1, JSON.stringify(rows.map((row, index) => ({ ...row, epoch: epochs[index] })))],
      about,
    );
  await assert.rejects(tell("a", [2, 1, 2, 9]), /was confirmed meanwhile/);
  await sql.query("UPDATE cluster SET timeline = '0'", [], about);
  assert.deepEqual(await tell("a", [2, 1, 3, 9]), ["cl-2"]);
  assert.deepEqual(await tell("b", [1, 1, 2, 1]), ["cl-1", "cl-3"]);
  const known = await sql.query("SELECT id, host, epoch, status FROM capsules ORDER BY id", [], about);
  assert.deepEqual(known, [
    { id: "cl-1", host: "a", epoch: 2, status: "paused" },
    { id: "cl-2", host: "b", epoch: 1, status: "starting" },
    { id: "cl-3", host: "a", epoch: 3, status: "paused" },
  ]);
  await assert.rejects(sql.call("acquire_capsule", ["cl-2", 1, "b", 1, null, 11], about), /was put back/);
  await assert.rejects(sql.call("delete_capsule", ["cl-2", 1, "b"], about), /was put back/);
  for (const name of ["x", null]) // the capsule has none
    await assert.rejects(sql.call("rename_capsule", ["cl-2", 1, "b", name, 12], about), /was put back/);
  await assert.rejects(sql.call("ensure_team", ["team-x", "x", 1], about), /was put back/);
});

test("a host tells nothing while a question of its own is without an answer", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, database } = cluster;
  const { sql } = database;
  const told = async () => {
    const [row] = await sql.query<{ place: string | null }>(
      "SELECT asserted_timeline AS place FROM hosts WHERE name = 'a'",
      [],
      about,
    );
    return row?.place;
  };
  let asked: ReturnType<typeof a.call> | undefined;
  await sql.transact(async (each) => {
    await each.query("SELECT 1 FROM teams WHERE name = 'red' FOR UPDATE");
    asked = a.call("POST", "/v1/capsules");
    await waitFor("the question", () => a.cluster.decided.isDeciding);
    await sql.query("UPDATE cluster SET timeline = '0'", [], about);
    for (let passed = 0; passed < 3; passed++) await a.second();
    assert.equal(a.cluster.membership.isPutBack, true);
    assert.equal(await told(), null);
  });
  const { status, json } = await asked!;
  assert.deepEqual([status, json.error.code], [503, "unavailable"]);
  await until(a, "to have told", () => !a.cluster.decided.isDeciding);
  await a.second();
  assert.notEqual(await told(), null);
});

test("a status that the database has forgotten is copied again, though no host has missed the database", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, database } = cluster;
  const { sql } = database;
  const id = await created(a);
  await sql.query("UPDATE cluster SET timeline = '0'", [], about);
  await sql.query("UPDATE capsules SET status = 'paused', copy = 1 WHERE id = $1", [id], about);
  await hasAsserted(a);
  await a.copied();
  assert.deepEqual(await sql.query("SELECT status FROM capsules", [], about), [{ status: "running" }]);
});

test("no name is taken from a database that was put back since the names were compared", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, database } = cluster;
  const id = await created(a, { name: "api" });
  await database.sql.query("UPDATE capsules SET name = 'web' WHERE id = $1", [id], about);
  const query = a.sql.query.bind(a.sql);
  let reads = 0;
  a.sql.query = async (text, ...of) => {
    const rows = await query(text, ...of);
    const isFirst = text.includes("is_own_place") && reads++ === 0;
    if (isFirst) await database.sql.query("UPDATE cluster SET timeline = '0'", [], about);
    return rows as never;
  };
  a.clock.advance(60_000); // all capsules are compared
  await a.cluster.settled();
  assert.equal(reads, 2);
  assert.equal(a.service.store.get(id)?.name, "api");
});

test("a delete of a template that is answered by the database of before is told to the one that was put back", {
  skip,
}, async (t) => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const template = { sandbox_id: await created(a), name: "tools" };
  assert.equal((await a.call("POST", "/v1/snapshots", template)).status, 201);
  await created(a, { template: "tools" }); // which keeps its files, and its row on this host
  const dump = server.dump(database.url);
  let silent: string[] = [];
  late(t, a, "retire_template", async () => {
    server.restore(database.url, dump, false);
    for (const host of [a, b]) await until(host, "to see it", () => host.cluster.membership.isPutBack);
    await hasAsserted(b);
    for (let passed = 0; passed < 3; passed++) await a.second();
    silent = (await confirmPlace(database.sql)).silent;
  });
  assert.equal((await a.call("DELETE", "/v1/snapshots/tools")).status, 204);
  assert.deepEqual(silent, ["a"]);
  await hasAsserted(a);
  assert.equal((await confirmPlace(database.sql)).was, "confirmed");
  assert.deepEqual((await b.call("GET", "/v1/snapshots?type=snapshot")).json, []);
});

test("a host that a database has forgotten goes on with its epoch", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await addTeams(database);
  await server.save();
  await database.sql.query("DELETE FROM hosts", [], about);
  await using a = await hostOfCluster(database, "a", { epoch: 7 });
  assert.match(a.refusals.join(), /another daemon has joined as host a/);
  await server.putBack();
  const before = a.refusals.length;
  await until(a, "to see it", () => a.cluster.membership.isPutBack);
  assert.equal(a.refusals.length, before);
  const rows = await database.sql.query("SELECT epoch FROM hosts WHERE name = 'a'", [], about);
  assert.deepEqual(rows, [{ epoch: 7 }]);
});
