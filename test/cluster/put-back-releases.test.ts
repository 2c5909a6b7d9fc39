/** A database that was put back has forgotten releases: their hosts tell it, so that no checkpoint in the bucket is lost. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket } from "../../src/bucket/bucket.ts";
import type { Capsule } from "../../src/capsules/store.ts";
import { Collector } from "../../src/cluster/collector.ts";
import { drainHost } from "../../src/cluster/host-list.ts";
import { confirmPlace } from "../../src/cluster/put-back.ts";
import { releaseColumns } from "../../src/cluster/released.ts";
import type { CapsuleRow } from "../../src/db/capsule-rows.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { FakeBucket, type FakeFiles } from "../fakes/fake-bucket.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeObjects } from "../fakes/fake-objects.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster, releaseAfterMs } from "./fake-hosts.ts";
import { late } from "./late.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, creating } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const dayMs = 86_400_000;

interface Host extends FakeHostOfCluster {
  files: FakeFiles;
  uploads: FakeUploads;
}

/** Hosts a and b with one bucket. */
async function twoHosts(plant = "SELECT 1") {
  const database = await clusterDatabase(server);
  await addTeams(database);
  await database.sql.query("DELETE FROM hosts WHERE name = 'c'", [], about);
  await database.sql.query(plant, [], about);
  const bucket = new FakeBucket();
  const host = async (name: string): Promise<Host> => {
    const machine = new FakeHost();
    const uploads = new FakeUploads(machine, bucket.checkpoints);
    const files = bucket.filesOf(machine);
    return Object.assign(await hostOfCluster(database, name, { machine, uploads, files }), { files, uploads });
  };
  const [a, b] = [await host("a"), await host("b")];
  return {
    ...{ database, bucket, a, b },
    async [Symbol.asyncDispose]() {
      for (const each of [a, b, database]) await each[Symbol.asyncDispose]();
    },
  };
}

type World = Awaited<ReturnType<typeof twoHosts>>;

async function paused(host: Host): Promise<string> {
  const id = await created(host, { timeout_sec: 0 });
  assert.equal((await host.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await host.service.settled();
  await host.copied();
  return id;
}

/** All paused capsules of the host are released. Resolves with the prefixes of these, in the order of the ids. */
async function releasedOf(host: Host, ids: readonly string[]): Promise<string[]> {
  host.clock.advance(releaseAfterMs);
  await waitFor(`${ids} to leave ${host.name}`, () => ids.every((id) => host.service.store.get(id) === undefined));
  await host.cluster.settled();
  const prefixes = [...host.uploads.checkpoints.keys()];
  return ids.map((id) => prefixes.findLast((prefix) => prefix.includes(id))!);
}

async function acquired(host: Host, id: string): Promise<boolean> {
  return await host.cluster.acquiring.acquire({ id, need: "held" });
}

/** The database is reached on a new connection. */
async function reached(...hosts: Host[]): Promise<void> {
  for (const { name, sql } of hosts)
    await waitFor(`${name} to reach the database`, () => sql.query("SELECT 1", [], about).catch(() => undefined));
}

async function seen(host: Host): Promise<void> {
  await waitFor(`${host.name} to see that the database was put back`, async () => {
    await host.second();
    return host.cluster.membership.isPutBack;
  });
}

async function told(host: Host): Promise<void> {
  await waitFor(`${host.name} to have told`, async () => {
    await host.second();
    const [row] = await host.sql.query<{ isTold: boolean }>(
      `SELECT asserted_timeline IS NOT DISTINCT FROM database_place() AS "isTold" FROM hosts WHERE name = $1`,
      [host.name],
      about,
    );
    return row?.isTold;
  });
}

async function confirmed({ database, a, b }: World): Promise<string[]> {
  const { was, changes } = await confirmPlace(database.sql);
  assert.equal(was, "confirmed");
  for (const host of [a, b])
    await waitFor(`${host.name} to go on`, async () => {
      await host.second();
      return !host.cluster.membership.isPutBack;
    });
  return changes.map(({ what, id, host }) => `${what} ${id} ${host}`).sort();
}

async function rowOf({ sql }: ClusterDatabase, id: string) {
  const [row] = await sql.query<{ host: string | null; epoch: number; checkpoint: string | null; version: number }>(
    "SELECT host, epoch, checkpoint, version FROM capsules WHERE id = $1",
    [id],
    about,
  );
  return row;
}

async function column({ sql }: ClusterDatabase, text: string): Promise<unknown[]> {
  return (await sql.query<{ value: unknown }>(text, [], about)).map(({ value }) => value);
}

/**
 * Two hosts change capsules behind a backup: `left` was held in the backup, and was released; `made` was made and released; `moved` was
 * released in the backup, resumed by b and released again; `ended` was made, released and destroyed at b; `taken` was made, released and
 * acquired by b; `given` was made, released, acquired by b and given back. Then the database is put back. Resolves with their ids, and the checkpoints of those that no host holds.
 */
async function forgotten({ database, bucket, a, b }: World) {
  const moved = await paused(a);
  await releasedOf(a, [moved]);
  const left = await paused(a);
  await server.save();
  await reached(a, b);
  const [made, ended, taken, given] = [await paused(a), await paused(a), await paused(a), await paused(a)];
  const [ofLeft, ofMade, , , ofGiven] = await releasedOf(a, [left, made, ended, taken, given]);
  bucket.isChanged = true;
  await assert.rejects(acquired(b, given), /does not verify/);
  bucket.isChanged = false;
  await b.second(); // its time is another one than that of the first pause
  for (const id of [moved, taken]) {
    assert.equal(await acquired(b, id), true);
    assert.equal((await b.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
  }
  assert.equal((await b.call("POST", `/v1/capsules/${moved}/pause`)).status, 200);
  assert.equal((await b.call("DELETE", `/v1/capsules/${ended}`)).status, 204);
  await b.service.settled();
  const [ofMoved] = await releasedOf(b, [moved]);
  await server.putBack();
  await waitFor("the database", () => database.sql.query("SELECT 1", [], about).catch(() => undefined));
  const checkpoints = { left: ofLeft, made: ofMade, moved: ofMoved, given: ofGiven };
  return { left, made, moved, ended, taken, given, checkpoints };
}

test("a delete of a released capsule that is answered by the database of before is told to the one that was put back", {
  skip,
}, async (t) => {
  await using world = await twoHosts();
  const { a, b, database } = world;
  const id = await paused(a);
  await releasedOf(a, [id]);
  const dump = server.dump(database.url);
  let silent: string[] = [];
  late(t, b, "delete_capsule", async () => {
    server.restore(database.url, dump, false);
    await told(a);
    await seen(b);
    for (let passed = 0; passed < 3; passed++) await b.second();
    silent = (await confirmPlace(database.sql)).silent;
  });
  assert.equal((await b.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  assert.deepEqual(silent, ["b"]);
  await told(b);
  assert.deepEqual(await confirmed(world), [`destroyed ${id} b`]);
  assert.equal((await a.call("GET", `/v1/capsules/${id}`)).status, 404);
});

test("releases that a database has forgotten are told, and each capsule is resumed from its last checkpoint", {
  skip,
}, async () => {
  await using world = await twoHosts();
  const { a, b, database } = world;
  const { left, made, moved, ended, taken, given, checkpoints } = await forgotten(world);
  const states = () => Promise.all([left, made, moved, given].map((id) => rowOf(database, id)));
  const before = await states();
  assert.deepEqual(
    before.map((row) => [row?.host, row?.epoch]),
    [
      ["a", 1],
      [undefined, undefined],
      [null, 1],
      [undefined, undefined],
    ],
  );
  const [version] = (await column(database, "SELECT version AS value FROM teams WHERE name = 'red'")) as number[];
  // The tombstone comes before the release of what was destroyed, and a later epoch before the earlier one.
  await seen(b);
  await told(b);
  await seen(a);
  await told(a);
  const after = await states();
  assert.deepEqual(
    after.map((row) => [row?.host, row?.epoch, row?.checkpoint]),
    [
      [null, 1, checkpoints.left],
      [null, 1, checkpoints.made],
      [null, 2, checkpoints.moved],
      [null, 2, checkpoints.given],
    ],
  );
  for (const row of after) assert.ok(row!.version > version!, "a stream of events does not show it");
  assert.deepEqual(await confirmed(world), [
    ...[
      `held ${taken} b`,
      `released ${left} a`,
      `released ${made} a`,
      `released ${moved} b`,
      `released ${given} b`,
    ].sort(),
  ]);
  assert.equal(await rowOf(database, ended), undefined);
  assert.equal((await a.call("GET", `/v1/capsules/${ended}`)).status, 404);
  assert.equal((await rowOf(database, taken))?.host, "b");
  assert.equal((await b.call("POST", `/v1/capsules/${taken}/ping`)).status, 204);
  for (const id of [left, made, moved, given]) {
    assert.equal(await acquired(b, id), true);
    assert.equal((await b.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
  }
  for (const host of [a, b]) {
    host.clock.advance(60_000); // all capsules are compared
    await host.cluster.settled();
  }
  assert.deepEqual([a.cluster.report().contradictions, b.cluster.report().contradictions], [0, 0]);
  const garbage = (await column(database, "SELECT prefix AS value FROM garbage")) as string[];
  assert.ok(garbage.some((prefix) => prefix.includes(ended)));
  for (const prefix of Object.values(checkpoints)) assert.ok(!garbage.includes(prefix!));
});

test("a capsule that a database has forgotten on its way to another host is resumed", { skip }, async () => {
  await using world = await twoHosts();
  const { a, b, database } = world;
  const id = await created(a, { timeout_sec: 0 });
  await server.save();
  await reached(a, b);
  b.files.isOther = true; // it takes none
  await drainHost(database.sql, "a");
  const isMoving = async () =>
    (await column(database, "SELECT moving AS value FROM capsules WHERE host IS NULL"))[0] === true;
  await waitFor(`${id} to be on its way`, async () => {
    for (const host of [b, a]) await host.second();
    return await isMoving();
  });
  await server.putBack();
  await waitFor("the database", () => database.sql.query("SELECT 1", [], about).catch(() => undefined));
  assert.equal((await rowOf(database, id))?.host, "a");
  b.files.isOther = false;
  for (const host of [a, b]) {
    await seen(host);
    await told(host);
  }
  assert.equal(await isMoving(), true);
  await confirmed(world);
  await waitFor(`${id} to run`, async () => {
    for (const host of [a, b]) await host.second();
    return [a, b].some(({ service }) => service.store.get(id)?.status === "running");
  });
});

test("an assert without what was released loses it", { skip }, async () => {
  const mutant = `CREATE OR REPLACE FUNCTION assert_released(p_host text, p_host_epoch bigint, p_rows jsonb) RETURNS text[]
    LANGUAGE sql AS $$ SELECT '{}'::text[] $$`;
  await using world = await twoHosts(mutant);
  const { a, b, database } = world;
  const { left, made, moved, checkpoints } = await forgotten(world);
  for (const host of [b, a]) {
    await seen(host);
    await told(host);
  }
  await confirmed(world);
  assert.deepEqual([await acquired(b, left), await acquired(b, made)], [false, false]);
  assert.notEqual((await rowOf(database, moved))?.checkpoint, checkpoints.moved);
});

test("a release without an answer is told, too, and ends when the place is confirmed", { skip }, async () => {
  await using world = await twoHosts();
  const { a, b, database } = world;
  const held = await paused(a);
  await server.save();
  await reached(a, b);
  const made = await paused(a);
  const { promise, resolve } = Promise.withResolvers<void>();
  a.uploads.moment = () => promise;
  a.clock.advance(releaseAfterMs);
  await waitFor("both uploads", () => a.uploads.underWay.size === 2);
  await server.putBack();
  await reached(a, b);
  resolve();
  const { store } = a.service;
  await waitFor("both to be leaving", () => store.leaving.has(held) && store.leaving.has(made));
  for (const host of [a, b]) {
    await seen(host);
    await told(host);
  }
  assert.deepEqual(await confirmed(world), [`released ${held} a`, `released ${made} a`].sort());
  await waitFor("both to leave", async () => {
    await a.second();
    return store.get(held) === undefined && store.get(made) === undefined;
  });
  for (const id of [held, made]) assert.deepEqual((await rowOf(database, id))?.host, null);
  assert.equal(await acquired(b, made), true);
  assert.deepEqual(new HoldingRows(a.database).uploads(9), []);
});

const kept = {
  ...{ url_secret: null, envs: null, inject: null, port_secret: null },
  ...{ connections: 0, connections_denied: 0, bytes_out: 0, bytes_in: 0 },
};

const prefixOf = (id: string, epoch = 1) => `capsules/${id}/${epoch}.3.0000000a`;

/** As release_capsule and assert_released take it. */
function columnsOf(id: string, epoch = 1, of: Partial<CapsuleRow> = {}): Record<string, unknown> {
  const row = capsuleRow(id, { status: "paused", intent: null, revision: 4, ...of }) as Capsule;
  const { revision } = row;
  const checkpoint = {
    ...{ prefix: prefixOf(id, epoch), manifestSha256: "0".repeat(64), bytes: 5, at: 6, revision },
    ...{ machine: {}, record: { revision: 3 }, savedRevision: 3, qemuBuild: null, format: 2 },
  };
  return { ...releaseColumns({ row, kept, checkpoint }), copy: 5, epoch };
}

const isPutBack = ({ sql }: ClusterDatabase) => sql.query("UPDATE cluster SET timeline = '0'", [], about);
const tell = ({ sql }: ClusterDatabase, host: string, ...rows: object[]) =>
  sql.call<string[]>("assert_released", [host, 1, JSON.stringify(rows)], about);

test("a release counts by its epoch and its host, and not against a tombstone", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const make = (id: string, of: Partial<CapsuleRow> = {}) =>
    sql.call("create_capsule", creating("a", capsuleRow(id, of)), about);
  for (const id of ["cl-own", "cl-other", "cl-later", "cl-gone", "cl-released", "cl-two"]) await make(id);
  await make("cl-ahead", { revision: 5 });
  await make("cl-named", { name: "web" });
  await sql.call("delete_capsule", ["cl-gone", 1, "a"], about);
  for (const id of ["cl-later", "cl-released", "cl-two"])
    await sql.call("release_capsule", [id, 1, "a", JSON.stringify(columnsOf(id))], about);
  await sql.call("acquire_capsule", ["cl-later", 1, "b", 1, null, 9], about);
  await assert.rejects(tell(database, "a", columnsOf("cl-own")), /was confirmed meanwhile/);
  await isPutBack(database);
  const odd = await tell(
    database,
    "a",
    ...["cl-own", "cl-ahead", "cl-gone", "cl-later", "cl-released"].map((id) => columnsOf(id)),
    { ...columnsOf("cl-two"), checkpoint: prefixOf("cl-two", 7) },
    columnsOf("cl-new", 3, { name: "web" }),
    columnsOf("cl-no-team", 1, { teamId: "team-gone" }),
    { ...columnsOf("cl-runs"), status: "running" },
  );
  assert.deepEqual(odd, ["cl-ahead", "cl-runs", "cl-two"]);
  assert.deepEqual(await tell(database, "b", columnsOf("cl-other")), ["cl-other"]);
  const rows = async () =>
    await column(
      database,
      `SELECT concat_ws(' ', id, COALESCE(host, '-'), epoch, last_host, status, name) AS value FROM capsules ORDER BY id`,
    );
  const found = [
    ...["cl-ahead a 1 starting", "cl-later b 2 a paused", "cl-named a 1 starting web", "cl-new - 3 a paused"],
    ...["cl-other a 1 starting", "cl-own - 1 a paused", "cl-released - 1 a paused", "cl-two - 1 a paused"],
  ];
  assert.deepEqual(await rows(), found);
  assert.equal((await rowOf(database, "cl-two"))?.checkpoint, prefixOf("cl-two"));
  assert.deepEqual(await column(database, "SELECT prefix AS value FROM garbage"), [prefixOf("cl-gone")]);
  assert.deepEqual(await column(database, "SELECT concat_ws(' ', what, id) AS value FROM assertions ORDER BY id"), [
    "released cl-new",
    "released cl-own",
  ]);
  // Told again; a later epoch; and a name whose capsule has another one by now.
  await sql.call("assert_held", ["a", 1, JSON.stringify([{ ...columnsOf("cl-named"), name: "api" }])], about);
  await tell(database, "b", columnsOf("cl-later", 3), columnsOf("cl-own", 2), columnsOf("cl-new", 3, { name: "web" }));
  assert.deepEqual(await rows(), [
    ...["cl-ahead a 1 starting", "cl-later - 3 b paused", "cl-named a 1 starting api", "cl-new - 3 a paused web"],
    ...["cl-other a 1 starting", "cl-own - 2 b paused", "cl-released - 1 a paused", "cl-two - 1 a paused"],
  ]);
  assert.deepEqual(await column(database, "SELECT prefix AS value FROM garbage ORDER BY prefix"), [
    ...[prefixOf("cl-gone"), prefixOf("cl-later"), prefixOf("cl-own")],
  ]);
});

test("a row that is told of has the mark of a move as its release has it", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const moving = (id: string, epoch?: number) => ({ ...columnsOf(id, epoch), id, moving: true });
  for (const id of ["cl-held", "cl-left", "cl-marked", "cl-same"])
    await sql.call("create_capsule", creating("a", capsuleRow(id)), about);
  for (const columns of [{ ...columnsOf("cl-left"), id: "cl-left" }, moving("cl-marked"), moving("cl-same")])
    await sql.call("release_capsule", [columns.id, 1, "a", JSON.stringify(columns)], about);
  await isPutBack(database);
  const { moving: _mark, ...ofEarlierProgram } = columnsOf("cl-earlier");
  const rows = [moving("cl-held"), moving("cl-new"), moving("cl-same"), ofEarlierProgram];
  for (const _again of [1, 2]) {
    assert.deepEqual(await tell(database, "a", ...rows), []);
    assert.deepEqual(await tell(database, "b", moving("cl-left", 2), columnsOf("cl-marked", 2)), []);
    assert.deepEqual(await column(database, "SELECT concat_ws(' ', id, moving) AS value FROM capsules ORDER BY id"), [
      "cl-earlier",
      "cl-held t",
      "cl-left t",
      "cl-marked",
      "cl-new t",
      "cl-same t",
    ]);
  }
});

/** By the backup `cl-first` is "web"; in the forgotten time it became "api", and then `cl-second` "web". */
for (const firstTold of ["cl-first", "cl-second"])
  test(`names that have gone from one capsule to another are kept, with ${firstTold} told first`, {
    skip,
  }, async () => {
    await using database = await clusterDatabase(server);
    const { sql } = database;
    const name = (id: string, of: string) => ({ ...columnsOf(id, 1, { name: of }), id, host: "a" });
    for (const [id, of] of Object.entries({ "cl-first": "web", "cl-second": null, "cl-odd": null, "cl-two": "two" }))
      await sql.call("create_capsule", creating("a", capsuleRow(id, { name: of })), about);
    await isPutBack(database);
    const told = {
      "cl-first": () => sql.call("assert_held", ["a", 1, JSON.stringify([name("cl-first", "api")])], about),
      "cl-second": () => tell(database, "a", name("cl-second", "web"), name("cl-twice", "two"), name("cl-once", "two")),
    };
    const order = Object.entries(told).sort(([id]) => (id === firstTold ? -1 : 1));
    for (const [, each] of order) await each();
    // The word of a host that does not hold it, and a row of an earlier epoch.
    await sql.call("assert_held", ["b", 1, JSON.stringify([name("cl-odd", "web")])], about);
    await tell(database, "a", columnsOf("cl-odd", 0, { name: "web" }));
    const [before] = await column(database, "SELECT MAX(version) AS value FROM teams");
    await sql.query("UPDATE hosts SET asserted_timeline = database_place()", [], about);
    assert.equal((await sql.call<{ was: string }>("confirm_place", [], about)).was, "confirmed");
    assert.deepEqual(await column(database, "SELECT concat_ws(' ', id, name) AS value FROM capsules ORDER BY id"), [
      "cl-first api",
      "cl-odd",
      "cl-once",
      "cl-second web",
      "cl-twice",
      "cl-two two",
    ]);
    const shown = `SELECT COUNT(*) AS value FROM capsules WHERE id = 'cl-second' AND version > ${before}`;
    assert.deepEqual(await column(database, shown), [firstTold === "cl-second" ? 1 : 0], "lists and events follow it");
    assert.deepEqual(await column(database, "SELECT COUNT(*) AS value FROM told_names"), [0]);
  });

test("what a host has destroyed stays so, though the database knows nothing of it when it is told", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await isPutBack(database);
  await sql.call("assert_destroyed", ["b", 1, ["cl-1", "cl-2"]], about);
  await tell(database, "a", columnsOf("cl-1"));
  await sql.call("assert_held", ["a", 1, JSON.stringify([columnsOf("cl-2")])], about);
  assert.deepEqual(await column(database, "SELECT id AS value FROM capsules"), []);
  assert.deepEqual(await column(database, "SELECT prefix AS value FROM garbage"), [prefixOf("cl-1")]);
});

test("the bucket is collected neither while the database is put back nor within a day of its confirmation", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const objects = new FakeObjects();
  const names = ["cl-1", "cl-2"].map((id) => `${prefixOf(id)}/0`);
  for (const name of names) objects.objects.set(name, Buffer.from("x"));
  const log = { info() {}, warn() {}, error() {} };
  const collector = new Collector({ sql, bucket: new Bucket(objects, { attempts: 1 }), log });
  const collect = () => collector.collect(new AbortController().signal);
  const age = (ms: number) => sql.query("UPDATE garbage SET at = at - $1::bigint", [ms], about);
  await sql.call("add_garbage", [names.map((name) => name.slice(0, -2))], about);
  await isPutBack(database);
  await age(2 * dayMs);
  assert.equal(await collect(), 0);
  await tell(database, "a", columnsOf("cl-1"));
  const places = "UPDATE hosts SET asserted_timeline = database_place()";
  await sql.query(places, [], about);
  assert.equal((await confirmPlace(sql)).was, "confirmed");
  assert.equal(await collect(), 0);
  await age(dayMs - 3_600_000);
  assert.equal(await collect(), 0);
  await age(7_200_000);
  assert.equal(await collect(), 1);
  assert.deepEqual([...objects.objects.keys()], [names[0]]);
});
