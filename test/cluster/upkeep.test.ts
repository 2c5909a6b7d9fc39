/** The periodic work of three hosts on one PostgreSQL and one bucket: each thing is done, and done once. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Bucket } from "../../src/bucket/bucket.ts";
import { BucketError } from "../../src/bucket/objects.ts";
import type { Capsule } from "../../src/capsules/store.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { releaseColumns } from "../../src/cluster/released.ts";
import type { ReleasedFolder } from "../../src/cluster/released-cache.ts";
import { overdueMs } from "../../src/cluster/releases.ts";
import { Upkeep } from "../../src/cluster/upkeep.ts";
import { type CapsuleRow, CapsuleRows } from "../../src/db/capsule-rows.ts";
import { openDatabase } from "../../src/db/database.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { FakeClock } from "../fakes/fake-clock.ts";
import { FakeObjects } from "../fakes/fake-objects.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, creating, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const dayMs = 86_400_000;

const kept = {
  ...{ url_secret: null, envs: null, inject: null, port_secret: null },
  ...{ connections: 0, connections_denied: 0, bytes_out: 0, bytes_in: 0 },
};

/** A host's part in the work, with a connection and tables of its own. */
async function upkeepOf(
  database: ClusterDatabase,
  host: string,
  objects: FakeObjects,
  of: { folders?: ReleasedFolder[]; cacheBytes?: number } = {},
) {
  const sql = await Postgres.open({ url: database.url, ...patient });
  const ended: string[] = [];
  const noted: string[] = [];
  const logged: string[] = [];
  const holding = new HoldingRows(openDatabase(":memory:"));
  const clock = new FakeClock();
  let folders = of.folders ?? [];
  const place = { isPutBack: false };
  const bucket = new Bucket(objects, { attempts: 1 });
  const make = () =>
    new Upkeep({
      isPutBack: () => place.isPutBack,
      ...{ sql, host, holding, clock, cacheBytes: of.cacheBytes ?? 0, bucket },
      folders: {
        cached: async () => folders,
        drop: async (name) => {
          folders = folders.filter((each) => each.name !== name);
        },
      },
      log: {
        info() {},
        warn: (...line: unknown[]) => logged.push(JSON.stringify(line)),
        error: (...line: unknown[]) => logged.push(JSON.stringify(line)),
      },
      store: { noteDestroyed: (id) => void noted.push(id) },
      onEnded: (_teamId, id) => ended.push(id),
    });
  return {
    ...{ sql, ended, noted, logged, holding, clock, bucket, place, make },
    left: () => folders.map(({ name }) => name),
    [Symbol.asyncDispose]: () => sql.close(),
  };
}

/** A capsule that `host` has released, paused so long ago. */
async function released({ sql }: ClusterDatabase, id: string, of: Partial<CapsuleRow>, agoMs = 0): Promise<string> {
  const lastUpdated = Date.now() - agoMs;
  await sql.call("create_capsule", creating("a", capsuleRow(id, { lastUpdated, ...of })), about);
  const row = capsuleRow(id, { status: "paused", intent: null, revision: 4, lastUpdated, ...of }) as Capsule;
  const prefix = `capsules/${id}/1.3.00000001`;
  const checkpoint = {
    ...{ prefix, manifestSha256: "0".repeat(64), bytes: 5, at: 6, revision: 4 },
    ...{ machine: {}, record: { revision: 3 }, savedRevision: 3, qemuBuild: null, format: 2 },
  };
  const columns = JSON.stringify({ ...releaseColumns({ row, kept, checkpoint }), copy: 5 });
  await sql.call("release_capsule", [id, 1, "a", columns], about);
  return prefix;
}

async function column({ sql }: ClusterDatabase, text: string): Promise<string[]> {
  return (await sql.query<{ value: string }>(text, [], about)).map(({ value }) => value);
}

const rowsOf = (database: ClusterDatabase) => column(database, "SELECT id AS value FROM capsules ORDER BY id");
const garbageOf = (database: ClusterDatabase) =>
  column(database, "SELECT prefix AS value FROM garbage ORDER BY prefix");
const age = ({ sql }: ClusterDatabase, ms: number) =>
  sql.query("UPDATE garbage SET at = at - $1::bigint, tried_at = tried_at - $1::bigint", [ms], about);

test("three hosts end each retention of a released capsule once", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const objects = new FakeObjects();
  await using a = await upkeepOf(database, "a", objects);
  await using b = await upkeepOf(database, "b", objects);
  await using c = await upkeepOf(database, "c", objects);
  const due = Array.from({ length: 230 }, (_, index) => `cl-due${1_000 + index}`);
  for (const id of due) await released(database, id, { retentionSec: 60 }, 60_000 + dayMs);
  await released(database, "cl-kept", {}, 365 * dayMs);
  await released(database, "cl-later", { retentionSec: 7_200 }, 3_600_000);
  const held = { retentionSec: 60, status: "paused", intent: null, lastUpdated: 1 } as const;
  await database.sql.call("create_capsule", creating("a", capsuleRow("cl-held", held)), about);
  await Promise.all([a, b, c].map((each) => each.make().pass()));
  assert.deepEqual([a.logged, b.logged, c.logged], [[], [], []]);
  assert.deepEqual([...a.ended, ...b.ended, ...c.ended].sort(), due);
  for (const each of [a, b, c]) assert.deepEqual(each.noted, each.ended);
  assert.deepEqual(await rowsOf(database), ["cl-held", "cl-kept", "cl-later"]);
  assert.deepEqual(await column(database, "SELECT id AS value FROM tombstones WHERE version > 0 ORDER BY id"), due);
  assert.deepEqual(
    await garbageOf(database),
    due.map((id) => `capsules/${id}/1.3.00000001`),
  );
});

test("the released capsules of a deleted team go, and no others", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await using a = await upkeepOf(database, "a", new FakeObjects());
  await database.sql.call("ensure_team", ["team-red", "red", 1], about);
  await released(database, "cl-red", { teamId: "team-red" });
  await released(database, "cl-blue", {});
  await database.sql.query("UPDATE teams SET deleted_at = 1 WHERE id = 'team-red'", [], about);
  await a.make().pass();
  assert.deepEqual([a.logged, await rowsOf(database)], [[], ["cl-blue"]]);
});

test("garbage is removed after a day, by one host, unless a row names it again", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const objects = new FakeObjects();
  await using a = await upkeepOf(database, "a", objects);
  await using b = await upkeepOf(database, "b", objects);
  await using c = await upkeepOf(database, "c", objects);
  const pass = () => Promise.all([a, b, c].map((each) => each.make().pass()));
  const put = (prefix: string, count: number) => {
    for (let index = 0; index < count; index++) objects.objects.set(`${prefix}/${index}`, Buffer.from("x"));
  };
  const prefixes = Array.from({ length: 30 }, (_, index) => `capsules/cl-${100 + index}/1.3.0000000a`);
  for (const [index, prefix] of prefixes.entries()) put(prefix, index === 0 ? 2_100 : 3);
  const others = ["capsules/cl-100/1.3.0000000ab/0", "capsules/cl-100/1.4.0000000b/manifest", "qemu/ab/00000001/0"];
  for (const name of others) objects.objects.set(name, Buffer.from("x"));
  const named = await released(database, "cl-named", {});
  put(named, 3);
  const artifact = "qemu/ab/00000001";
  await database.sql.call("begin_upload", [artifact], about);
  await database.sql.call("note_artifact", ["qemu", "ab", artifact, "0".repeat(64), 1], about);
  await database.sql.call("add_garbage", [prefixes], about);
  await database.sql.query(
    "INSERT INTO garbage (prefix, at) VALUES ($1, now_ms()), ($3, now_ms()), ('', now_ms() - $2), ('capsules', now_ms() - $2)",
    [named, 2 * dayMs, artifact],
    about,
  );
  const all = objects.objects.size;
  await age(database, dayMs - 3_600_000);
  await pass();
  assert.equal(objects.objects.size, all, "it was removed before its time");
  await age(database, 7_200_000);
  for (const each of [a, b, c]) each.logged.splice(0);
  await pass();
  assert.deepEqual(
    [...objects.objects.keys()].sort(),
    [...others, ...[0, 1, 2].map((index) => `${named}/${index}`)].sort(),
  );
  assert.equal(objects.deleted.length, new Set(objects.deleted).size, "an object was removed twice");
  assert.deepEqual(await garbageOf(database), ["", "capsules"], "an operator has to see what is no upload's");
  assert.ok([a, b, c].flatMap(({ logged }) => logged).every((line) => /is no upload's/.test(line)));
});

test("a removal that stopped in the middle is taken again, by whichever host", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const objects = new FakeObjects();
  await using a = await upkeepOf(database, "a", objects);
  await using b = await upkeepOf(database, "b", objects);
  const prefix = "capsules/cl-1/1.3.0000000a";
  for (let index = 0; index < 20; index++) objects.objects.set(`${prefix}/${index}`, Buffer.from("x"));
  await database.sql.call("add_garbage", [[prefix]], about);
  await age(database, dayMs);
  objects.onRequest = (method) => {
    if (method === "delete" && objects.deleted.length >= 5) throw new Error("the bucket is away");
  };
  await a.make().pass();
  assert.match(a.logged.join(), /garbage in the bucket could not be removed/);
  const left = objects.objects.size;
  assert.ok(left > 0 && left < 20);
  objects.onRequest = () => {};
  await b.make().pass();
  assert.equal(objects.objects.size, left, "another host may be removing it");
  await age(database, 700_000);
  await b.make().pass();
  assert.deepEqual([objects.objects.size, await garbageOf(database)], [0, []]);
});

test("uploads that a former daemon has not ended are garbage, but for those of a release that may be under way", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using a = await upkeepOf(database, "a", new FakeObjects());
  const noted = ["capsules/cl-1/1.3.00000001", "capsules/cl-2/1.3.00000002", "capsules/cl-3/1.3.00000003"];
  for (const [index, prefix] of noted.entries()) a.holding.noteUpload(prefix, index);
  a.holding.allReleasing = () => [{ id: "cl-2", epoch: 1, releasing: JSON.stringify({ prefix: noted[1] }) }];
  const upkeep = a.make();
  a.holding.noteUpload("capsules/cl-4/1.3.00000004", 9); // of this daemon
  await upkeep.pass();
  await upkeep.pass();
  assert.deepEqual(a.logged, []);
  assert.deepEqual(await garbageOf(database), [noted[0], noted[2]]);
  assert.deepEqual(a.holding.uploads(9), [noted[1], "capsules/cl-4/1.3.00000004"]);
});

test("folders of released capsules are kept while their row names their checkpoint, the last used ones within their size", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  for (const id of ["cl-1", "cl-2", "cl-3", "cl-4", "cl-5", "cl-6"]) await released(database, id, {});
  const acquire = (id: string, host: string) => database.sql.call("acquire_capsule", [id, 1, host, 1, null, 7], about);
  await acquire("cl-3", "b");
  await acquire("cl-4", "a"); // is being brought back
  const folder = (id: string, epoch = 1, revision = 3) => ({
    name: `${id}.${epoch}.${revision}`,
    id,
    epoch,
    revision,
    bytes: 10,
  });
  const folders = [
    folder("cl-1"),
    folder("cl-1", 1, 2),
    folder("cl-2", 2),
    folder("cl-3"),
    folder("cl-4"),
    folder("cl-gone"),
    folder("cl-5"),
    folder("cl-6"),
  ];
  await using roomy = await upkeepOf(database, "a", new FakeObjects(), { folders, cacheBytes: 1_000 });
  await roomy.make().pass();
  assert.deepEqual(roomy.left(), ["cl-1.1.3", "cl-4.1.3", "cl-5.1.3", "cl-6.1.3"]);
  await using small = await upkeepOf(database, "a", new FakeObjects(), { folders, cacheBytes: 25 });
  await small.make().pass();
  assert.deepEqual([small.logged, small.left()], [[], ["cl-5.1.3", "cl-6.1.3"]]);
});

test("a host without its database keeps its cache within its size, and says nothing", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const folder = (id: string) => ({ name: `${id}.1.3`, id, epoch: 1, revision: 3, bytes: 10 });
  await using a = await upkeepOf(database, "a", new FakeObjects(), {
    folders: [folder("cl-1"), folder("cl-2")],
    cacheBytes: 15,
  });
  await a.sql.close();
  await a.make().pass();
  assert.deepEqual([a.left(), a.logged], [["cl-2.1.3"], []]);
});

test("nothing is removed by a database that was put back", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const objects = new FakeObjects();
  const folders = [{ name: "cl-gone.1.3", id: "cl-gone", epoch: 1, revision: 3, bytes: 10 }];
  await using a = await upkeepOf(database, "a", objects, { folders, cacheBytes: 100 });
  await released(database, "cl-1", { retentionSec: 1 }, 60_000);
  objects.objects.set("capsules/cl-2/1.3.0000000a/0", Buffer.from("x"));
  await database.sql.call("add_garbage", [["capsules/cl-2/1.3.0000000a"]], about);
  await age(database, 2 * dayMs);
  a.holding.noteUpload("capsules/cl-3/1.3.0000000b", 1);
  const upkeep = a.make();
  a.place.isPutBack = true;
  await upkeep.pass();
  assert.deepEqual(
    [await rowsOf(database), objects.objects.size, a.left().length, a.holding.uploads(1).length],
    [["cl-1"], 1, 1, 1],
  );
  a.place.isPutBack = false;
  await upkeep.pass();
  assert.deepEqual(
    [await rowsOf(database), objects.objects.size, a.left().length, a.holding.uploads(1).length],
    [[], 0, 0, 0],
  );
});

test("a pass shows whether the bucket answers", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const objects = new FakeObjects();
  await using a = await upkeepOf(database, "a", objects);
  const upkeep = a.make();
  objects.onRequest = () => {
    throw new BucketError("the bucket refuses the key", { httpStatus: 403, reason: "AccessDenied" });
  };
  assert.equal(a.bucket.isUp, true);
  await upkeep.pass();
  assert.equal(a.bucket.isUp, false);
  objects.onRequest = () => {};
  await upkeep.pass();
  assert.equal(a.bucket.isUp, true);
  await assert.rejects(a.bucket.get("missing", { maxBytes: 1 }), /no object/);
  assert.equal(a.bucket.isUp, true, "a bucket without an object answers");
});

test("paused capsules of a host are counted from the first pause on", () => {
  const database = openDatabase(":memory:");
  database.exec("PRAGMA foreign_keys = OFF"); // it has no team
  const [rows, holding] = [new CapsuleRows(database), new HoldingRows(database)];
  assert.deepEqual(holding.unreleased(), { count: 0, since: null });
  const paused = { status: "paused", intent: null } as const;
  rows.insert(capsuleRow("cl-1", { ...paused, lastUpdated: 30 }));
  rows.insert(capsuleRow("cl-2", { ...paused, lastUpdated: 20 }));
  rows.insert(capsuleRow("cl-3", { status: "running", intent: null, lastUpdated: 10 }));
  rows.insert(capsuleRow("cl-4", { status: "paused", intent: "resume", lastUpdated: 5 }));
  assert.deepEqual(holding.unreleased(), { count: 2, since: 20 });
  rows.insert(capsuleRow("cl-5", { ...paused, blockedBy: "tools", lastUpdated: 1 }));
  assert.deepEqual(holding.unreleased(), { count: 3, since: 20 }, "it is never released");
  for (const id of ["cl-1", "cl-2"]) rows.remove(id);
  assert.deepEqual(holding.unreleased(), { count: 1, since: null });
  database.close();
});

test("a paused capsule is due for the bucket once the rest that the setting asks for is over", () => {
  const overdue = (pausedAt: number | null, startedAt: number, afterMs: number) =>
    overdueMs(pausedAt, { startedAt, afterMs, now: 10_000 });
  assert.equal(overdue(null, 0, 0), 0);
  assert.equal(overdue(4_000, 0, 5_000), 1_000);
  assert.equal(overdue(5_000, 0, 5_000), 0);
  assert.equal(overdue(4_000, 0, 3_600_000), 0);
  assert.equal(overdue(1_000, 8_000, 500), 1_500, "its rest begins anew with the server");
});

test("passes come 30 to 60 s apart, one at a time, and end with the host", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await using a = await upkeepOf(database, "a", new FakeObjects());
  await released(database, "cl-1", { retentionSec: 1 }, 60_000);
  const upkeep = a.make();
  upkeep.start();
  assert.ok(a.clock.nextMs! >= 30_000 && a.clock.nextMs! <= 60_000);
  a.clock.advance(60_000);
  assert.equal(a.clock.nextMs, undefined, "the next one waits for the end of this one");
  await upkeep.passed();
  assert.deepEqual(await rowsOf(database), []);
  assert.ok(a.clock.nextMs! >= 30_000);
  await upkeep.stop();
  assert.equal(a.clock.nextMs, undefined);
});
