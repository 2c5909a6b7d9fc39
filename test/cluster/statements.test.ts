/** The functions of the cluster's schema under many connections at once, in a real PostgreSQL. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Postgres } from "../../src/cluster/postgres.ts";
import { columnsOf } from "../../src/cluster/rows.ts";
import { capsuleColumns } from "../../src/cluster/schema/capsule-functions.ts";
import { createSchema, migrate, schemaOf } from "../../src/cluster/schema/migration.ts";
import type { CapsuleError } from "../../src/wire/errors.ts";
import { Random } from "../conformance/random.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { waitFor, within } from "../wait-for.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import {
  about,
  type ClusterDatabase,
  clusterDatabase,
  clusterId,
  creating,
  joining,
  patient,
  slowness,
} from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const connections = 16;

const refused = (code: string) => (error: CapsuleError) => error.code === code;

/** Several programs' connections: each Postgres opens four at most. */
async function many(url: string): Promise<Postgres[] & AsyncDisposable> {
  const opened = await Promise.all(Array.from({ length: connections / 4 }, () => Postgres.open({ url, ...patient })));
  return Object.assign(opened, {
    [Symbol.asyncDispose]: async () => void (await Promise.all(opened.map((e) => e.close()))),
  });
}

async function codesOf(calls: Promise<unknown>[]): Promise<Record<string, number>> {
  const codes: Record<string, number> = {};
  for (const result of await Promise.allSettled(calls)) {
    const code = result.status === "fulfilled" ? "ok" : String(result.reason.code);
    codes[code] = (codes[code] ?? 0) + 1;
  }
  return codes;
}

test("the tables have every column of a host's capsules, and a second cluster is refused", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const found = await sql.query<{ column_name: string }>(
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'capsules'",
    [],
    about,
  );
  const names = new Set(found.map((each) => each.column_name));
  assert.deepEqual(
    capsuleColumns.filter((name) => !names.has(name)),
    [],
  );
  assert.deepEqual(Object.keys(columnsOf(capsuleRow("cl-1"))).sort(), [...capsuleColumns].sort());
  const again = sql.transact((each) => createSchema(each, { id: "ffffffffffffffff", limits: {} }));
  await assert.rejects(again, /has the tables of a cluster already/);
});

test("a database of another cluster, of a later program or of none is refused, and an earlier one migrated", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.transact((each) => migrate(each, clusterId));
  await assert.rejects(
    sql.transact((each) => migrate(each, "ffffffffffffffff")),
    /belongs to another cluster/,
  );
  await sql.query("UPDATE cluster SET schema = 99, schema_min = 1", [], about);
  await sql.transact((each) => migrate(each, clusterId)); // a later schema that this program may work on
  await sql.query("UPDATE cluster SET schema_min = 99", [], about);
  await assert.rejects(
    sql.transact((each) => migrate(each, clusterId)),
    /needs a program of schema 99/,
  );
  const empty = await Postgres.open({ url: server.newDatabase(), ...patient });
  assert.equal(await empty.transact((each) => schemaOf(each)), undefined);
  await assert.rejects(
    empty.transact((each) => migrate(each, clusterId)),
    /has no cluster/,
  );
  await empty.close();
});

test("of 160 creates at once as many succeed as the team's quotas have room for", { skip }, async () => {
  await using database = await clusterDatabase(server, { capsules_max: 100, running_vcpus_max: 60 });
  await using pools = await many(database.url);
  const create = (index: number, status: string) =>
    pools[index % pools.length]!.call(
      "create_capsule",
      creating("abc"[index % 3]!, capsuleRow(`cl-${status}-${index}`, { status, intent: null })),
      about,
    );
  const running = await codesOf(Array.from({ length: 160 }, (_, index) => create(index, "running")));
  assert.deepEqual(running, { ok: 60, quota_exceeded: 100 });
  const [{ vcpus } = { vcpus: 0 }] = await database.sql.query<{ vcpus: number }>(
    "SELECT SUM(vcpus) AS vcpus FROM capsules",
    [],
    about,
  );
  assert.equal(Number(vcpus), 60);
});

test("one of 16 capsules gets a name, one of 16 requests an Idempotency-Key, and repeats of it succeed", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using pools = await many(database.url);
  const each = (work: (sql: Postgres, index: number) => Promise<unknown>) =>
    codesOf(Array.from({ length: connections }, (_, index) => work(pools[index % pools.length]!, index)));
  const named = await each((sql, index) =>
    sql.call("create_capsule", creating("a", capsuleRow(`cl-n${index}`, { name: "web" })), about),
  );
  assert.deepEqual(named, { ok: 1, name_taken: 15 });
  const keyed = {
    ...{ team_id: "team-blue", route: "/v1/capsules", key: "k", body_hash: "h", status: 201, answer: "{}" },
    keep_ms: 86_400_000,
  };
  const withKey = await each((sql, index) =>
    sql.call("create_capsule", creating("b", capsuleRow(`cl-k${index}`), { keyed }), about),
  );
  assert.deepEqual(withKey, { ok: 1, conflict: 15 });
  const repeated = await each((sql) => sql.call("create_capsule", creating("c", capsuleRow("cl-same")), about));
  assert.deepEqual(repeated, { ok: 16 });
});

test("the list is by created_at, whatever the order of the decisions, and those of one millisecond by that order", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const listed = async () => {
    const rows = await sql.query<{ id: string; seq: number }>(
      "SELECT id, seq FROM capsules WHERE team_id = 'team-blue' ORDER BY seq DESC",
      [],
      about,
    );
    for (const { seq } of rows) assert.ok(Number.isSafeInteger(seq));
    return rows.map(({ id }) => id);
  };
  // As a database holds them that an earlier schema has listed.
  await sql.query("ALTER TABLE capsules DISABLE TRIGGER listed_place", [], about);
  for (const id of ["cl-old-1", "cl-old-2"]) await sql.call("create_capsule", creating("a", capsuleRow(id)), about);
  await sql.query("ALTER TABLE capsules ENABLE TRIGGER listed_place", [], about);
  const now = Date.now();
  for (const [id, createdAt] of [
    ["cl-2", now + 2],
    ["cl-1", now + 1],
    ["cl-3a", now + 3],
    ["cl-3b", now + 3],
    ["cl-0", now],
  ] as const)
    await sql.call("create_capsule", creating("a", capsuleRow(id, { createdAt })), about);
  const inOrder = ["cl-3b", "cl-3a", "cl-2", "cl-1", "cl-0", "cl-old-2", "cl-old-1"];
  assert.deepEqual(await listed(), inOrder);
  // A millisecond has room for 1000; the next one of it comes first in the list.
  await sql.query(
    "UPDATE capsules SET seq = (SELECT seq FROM capsules WHERE id = 'cl-0') + 999 WHERE id = 'cl-0'",
    [],
    about,
  );
  await sql.call("create_capsule", creating("a", capsuleRow("cl-late", { createdAt: now })), about);
  assert.deepEqual(await listed(), ["cl-late", ...inOrder]);
});

test("a resume is admitted within the quotas, of a capsule that is held, and never by an old answer", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server, { running_vcpus_max: 2 });
  const { sql } = database;
  const paused = { status: "paused", intent: null };
  for (const id of ["cl-1", "cl-2", "cl-3"])
    await sql.call("create_capsule", creating("a", capsuleRow(id, paused)), about);
  const admit = (id: string, host: string, copy: number) =>
    sql.call("admit_resume", [id, 1, host, 1, "resume", copy], about);
  await admit("cl-1", "a", 2);
  await admit("cl-1", "a", 2); // its answer was lost
  await admit("cl-2", "a", 2);
  await assert.rejects(admit("cl-3", "a", 2), refused("quota_exceeded"));
  await assert.rejects(admit("cl-3", "b", 2), refused("unavailable"));
  const copy = (row: object) => sql.call("copy_status", [JSON.stringify([{ ...row, epoch: 1 }]), "a"], about);
  assert.equal(await copy({ ...columnsOf(capsuleRow("cl-2", { ...paused, revision: 4 })), copy: 3 }), 1);
  await assert.rejects(admit("cl-2", "a", 2), refused("unavailable")); // a statement that came late
  assert.equal(await copy({ ...columnsOf(capsuleRow("cl-2", { revision: 3 })), copy: 2 }), 0);
  await admit("cl-3", "a", 2);
  await assert.rejects(sql.call("admit_resume", ["cl-none", 1, "a", 1, "resume", 9], about), refused("not_found"));
});

test("a capsule that was destroyed stays so, whatever comes late", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const row = capsuleRow("cl-1", { name: "web" });
  await sql.call("create_capsule", creating("a", row), about);
  await assert.rejects(sql.call("delete_capsule", ["cl-1", 1, "b"], about), refused("unavailable"));
  await sql.call("delete_capsule", ["cl-1", 1, "a"], about);
  await sql.call("delete_capsule", ["cl-1", 1, "a"], about);
  await assert.rejects(sql.call("create_capsule", creating("a", row), about), refused("unavailable"));
  await assert.rejects(sql.call("rename_capsule", ["cl-1", 1, "a", "x", 5], about), refused("not_found"));
  assert.equal(
    await sql.call("copy_status", [JSON.stringify([{ ...columnsOf(row), copy: 9, epoch: 1 }]), "a"], about),
    0,
  );
});

test("a capture retires the template it replaces, blocks nobody, and is one for all hosts", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const template = (storage: string) =>
    JSON.stringify({
      ...{ storage, team_id: "team-blue", name: "tools", vcpus: 1, memory_mb: 512, disk_mb: 2_048, can_grow: 1 },
      ...{ size_bytes: 9, created_at: 5 },
    });
  for (const id of ["cl-1", "cl-2"]) await sql.call("create_capsule", creating("a", capsuleRow(id)), about);
  const capture = (id: string, storage: string, overwrites: boolean) =>
    sql.call("capture_capsule", [id, 1, "a", 1, template(storage), overwrites, null], about);
  await capture("cl-1", "st-1", false);
  await capture("cl-1", "st-1", false); // its answer was lost
  await assert.rejects(capture("cl-2", "st-2", false), refused("template_name_taken"));
  await sql.call(
    "create_capsule",
    creating("b", capsuleRow("cl-3", { storage: "st-1", status: "paused", intent: null })),
    about,
  );
  await capture("cl-2", "st-2", true);
  await assert.rejects(
    sql.call("create_capsule", creating("b", capsuleRow("cl-4", { storage: "st-1" })), about),
    refused("conflict"),
  );
  await sql.call("admit_resume", ["cl-3", 1, "b", 1, "resume", 2], about);
  await sql.call(
    "create_capsule",
    creating("b", capsuleRow("cl-5", { storage: "st-2", status: "paused", intent: null })),
    about,
  );
  await sql.call("retire_template", ["st-2", 7], about);
  await sql.call("retire_template", ["st-2", 7], about);
  await assert.rejects(sql.call("admit_resume", ["cl-5", 1, "b", 1, "resume", 2], about), refused("conflict"));
});

test("a daemon of another folder or place, or of an earlier epoch, is refused under a host's name", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  assert.equal(await sql.call("join_host", joining("a"), about), 2);
  await assert.rejects(
    sql.call("join_host", joining("a", { nonce: "other" }), about),
    /another data folder has joined/,
  );
  await assert.rejects(sql.call("join_host", joining("a", { place: "other" }), about), /is a copy, or was moved/);
  await assert.rejects(sql.beat("heartbeat", ["a", 1, "nonce-a", {}]), refused("unavailable"));
  const { catalog, hosts } = await sql.beat<{ catalog: number; hosts: { name: string; heartbeat: number }[] }>(
    "heartbeat",
    [...["a", 2, "nonce-a", {}]],
  );
  assert.ok(catalog > 1);
  assert.deepEqual(
    hosts.map(({ name }) => name),
    ["a", "b", "c"],
  );
  await assert.rejects(sql.call("create_capsule", creating("a", capsuleRow("cl-1")), about), refused("unavailable"));
  assert.equal(await sql.call("join_host", joining("a", { known: 40 }), about), 41);
});

test("keys end with their maker, and every change has a later number in the catalog", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const now = Date.now();
  const add = (id: string, madeBy: string | null, most: number | null = null) =>
    sql.call(
      "add_key",
      [
        JSON.stringify({ id, team_id: "team-blue", label: "", hash: `hash-${id}`, created_at: now, made_by: madeBy }),
        most,
        0,
      ],
      about,
    );
  const catalog = async () =>
    (await sql.query<{ catalog: number }>("SELECT catalog FROM cluster", [], about))[0]!.catalog;
  const before = await catalog();
  await add("key-1", null);
  await add("key-1", null);
  await add("key-2", "key-1");
  await add("key-3", "key-2");
  await assert.rejects(add("key-4", "key-1", 3), refused("quota_exceeded"));
  assert.equal(await catalog(), before + 3);
  assert.deepEqual((await sql.call<string[]>("revoke_key", ["key-2", now, false], about)).sort(), ["key-2", "key-3"]);
  assert.deepEqual((await sql.call<string[]>("revoke_key", ["key-2", now, false], about)).sort(), ["key-2", "key-3"]);
  assert.deepEqual(await sql.call("revoke_key", ["key-9", now, false], about), []);
  await assert.rejects(add("key-5", "key-3"), refused("unauthorized"));
  await assert.rejects(sql.call("delete_team", ["team-none", now], about), refused("not_found"));
  await sql.call("create_capsule", creating("a", capsuleRow("cl-1")), about);
  await assert.rejects(sql.call("delete_team", ["team-blue", now], about), refused("conflict"));
  await sql.call("delete_capsule", ["cl-1", 1, "a"], about);
  await sql.call("delete_team", ["team-blue", now], about);
  await sql.call("delete_team", ["team-blue", now], about);
  await assert.rejects(add("key-6", null), refused("not_found"));
});

/** A session tells of the deadlocks that it was in when it has ended. */
async function deadlocksOf({ sql }: ClusterDatabase): Promise<number> {
  const own = "datname = current_database()";
  const others = `SELECT 1 FROM pg_stat_activity WHERE ${own} AND application_name = 'capsule' AND pid <> pg_backend_pid()`;
  await waitFor("the other sessions to end", async () => (await sql.query(others, [], about)).length === 0);
  const found = await sql.query<{ deadlocks: number }>(
    `SELECT deadlocks FROM pg_stat_database WHERE ${own}`,
    [],
    about,
  );
  return found[0]!.deadlocks;
}

test("copies of many teams' capsules at once block nobody for ever, and the last one counts", { skip }, async (t) => {
  await using database = await clusterDatabase(server);
  await using pools = await many(database.url);
  const random = new Random(t);
  const teams = ["team-blue", "team-1", "team-2", "team-3"];
  for (const id of teams.slice(1)) await database.sql.call("ensure_team", [id, id, 1], about);
  const rows = Array.from({ length: 20 }, (_, index) =>
    capsuleRow(`cl-${index}`, { teamId: teams[index % teams.length]!, status: "running", intent: null }),
  );
  for (const row of rows) await database.sql.call("create_capsule", creating("a", row), about);
  const batches = Number(process.env.CAPSULE_TEST_COPIES ?? 1_000) / 10;
  let copy = 1;
  const work = async (sql: Postgres) => {
    for (let left = batches / connections; left > 0; left--) {
      const batch = Array.from({ length: 10 }, () => {
        const row = rows[random.below(rows.length)]!;
        return { ...columnsOf({ ...row, revision: ++copy }), id: row.id, epoch: 1, copy };
      });
      await sql.call(
        "copy_status",
        [JSON.stringify([...new Map(batch.map((each) => [each.id, each])).values()]), "a"],
        about,
      );
    }
  };
  await Promise.all(Array.from({ length: connections }, (_, index) => work(pools[index % pools.length]!)));
  const found = await database.sql.query<{ highest: number }>("SELECT MAX(copy) AS highest FROM capsules", [], about);
  assert.equal(found[0]?.highest, copy);
  await pools[Symbol.asyncDispose]();
  assert.equal(await deadlocksOf(database), 0, "a copy that was chosen to end would be sent again");
});

test("a statement whose answer is lost is sent again, and gives up in its time", { skip }, async () => {
  await using database = await clusterDatabase(server);
  let [nowMs, looks] = [0, 0];
  const ticks = () => {
    looks += 1;
    return nowMs;
  };
  const sql = await Postgres.open({ url: database.url, ...patient, ticks });
  await using _closed = { [Symbol.asyncDispose]: () => sql.close() };
  await sql.query("SELECT 1", [], about);
  await server.stop();
  const began = looks;
  let isOver = false;
  const given = sql.query("SELECT 1", [], { what: "test", allMs: 300 }).finally(() => {
    isOver = true;
  });
  await waitFor("several attempts", () => looks - began > 10);
  assert.equal(isOver, false);
  nowMs = 300 * slowness;
  await assert.rejects(within("an answer", given), (error: CapsuleError) => {
    return error.code === "unavailable" && error.message === "cannot test: the cluster's database is away";
  });
  assert.equal(sql.isAway, true);
  const answered = sql.query("SELECT 2 AS two", [], { what: "test", allMs: 60_000 });
  await server.resume();
  assert.deepEqual(await answered, [{ two: 2 }]);
  assert.equal(sql.isAway, false);
  const attempts = sql.outcomes.unanswered;
  assert.ok(attempts > 1, "each attempt is counted");
  await assert.rejects(sql.query("SELECT fail('CP003', 'no')", [], about), refused("not_found"));
  assert.deepEqual({ ...sql.outcomes }, { answered: 2, refused: 1, unanswered: attempts });
});

test("nothing is sent when the connections are closed, nor on one that was being made", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const beat = (sql: Postgres) => sql.beat("pg_backend_pid", []);
  const sendings = {
    query: (sql: Postgres) => sql.query("SELECT 1", [], about),
    beat,
    transact: (sql: Postgres) => sql.transact((each) => each.query("SELECT 1")),
  };
  const sql = await Postgres.open({ url: database.url, ...patient });
  for (const send of Object.values(sendings)) await send(sql);
  await sql.close();
  for (const time of ["the first time", "the next time"])
    for (const [what, send] of Object.entries(sendings)) {
      const sent = send(sql).then(
        () => true,
        () => false,
      );
      assert.equal(await within(what, sent), false, `${what}, ${time}`);
    }
  const young = await Postgres.open({ url: database.url, ...patient });
  const beating = assert.rejects(within("its failure", beat(young)), { code: "unavailable" });
  await young.close();
  await beating;
});

test("retention goes by the database's clock, whatever a host takes for the time", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.call("create_capsule", creating("a", capsuleRow("cl-1")), about);
  await sql.call("delete_capsule", ["cl-1", 1, "a"], about);
  await sql.call("forget", [60_000, 60_000], about);
  assert.equal((await sql.query("SELECT 1 FROM tombstones", [], about)).length, 1);
  await sql.query("UPDATE tombstones SET at = at - 61000", [], about);
  await sql.call("forget", [60_000, 60_000], about);
  assert.equal((await sql.query("SELECT 1 FROM tombstones", [], about)).length, 0);
  const add = (id: string, at: number) =>
    sql.call(
      "add_key",
      [
        JSON.stringify({ id, team_id: "team-blue", label: "", hash: id, created_at: at, expires_at: null }),
        null,
        60_000,
      ],
      about,
    );
  await add("key-1", 1);
  await sql.call("revoke_key", ["key-1", Date.now(), false], about);
  await add("key-2", Date.now() + 86_400_000); // a host whose clock is a day ahead
  assert.equal((await sql.query("SELECT 1 FROM keys WHERE id = 'key-1'", [], about)).length, 1);
});
