/** The functions of PostgreSQL by which a capsule is released and acquired, in a real one. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Capsule } from "../../src/capsules/store.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { decodeReleased, releaseColumns, withoutIntent } from "../../src/cluster/released.ts";
import { columnsOf } from "../../src/cluster/rows.ts";
import { capsuleColumns } from "../../src/cluster/schema/capsule-functions.ts";
import { checkpointColumns } from "../../src/cluster/schema/released-capsules.ts";
import type { CapsuleRow } from "../../src/db/capsule-rows.ts";
import type { KeptColumns } from "../../src/db/holding-rows.ts";
import type { CapsuleError } from "../../src/wire/errors.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, creating, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

const raised = (code: string) => (error: CapsuleError & { raised?: string }) => error.raised === code;
const paused = { status: "paused", intent: null } as const;
const kept: KeptColumns = {
  ...{ url_secret: null, envs: new Uint8Array([7]), inject: null, port_secret: null },
  ...{ connections: 1, connections_denied: 0, bytes_out: 2, bytes_in: 3 },
};

function rowOf(id: string, revision: number, of: Partial<CapsuleRow> = {}): Capsule {
  return capsuleRow(id, { ...paused, revision, ...of }) as Capsule;
}

function releasing(row: Capsule, host: string, epoch = 1, suffix = "00000001"): unknown[] {
  const prefix = `capsules/${row.id}/${epoch}.${row.revision}.${suffix}`;
  const checkpoint = {
    ...{ prefix, manifestSha256: "0".repeat(64), bytes: 5, at: 6, revision: row.revision },
    ...{
      machine: { cpu: "x" },
      record: { revision: row.revision - 1 },
      savedRevision: row.revision - 1,
      qemuBuild: "q",
      format: 2,
    },
  };
  return [row.id, epoch, host, JSON.stringify({ ...releaseColumns({ row, kept, checkpoint }), copy: 5 })];
}

const acquiring = (id: string, host: string, epoch = 1, { intent = null as string | null, copy = 7 } = {}) => [
  ...[id, epoch, host, 1, intent, copy],
];

async function rowIn({ sql }: ClusterDatabase, id: string): Promise<Record<string, unknown> | undefined> {
  const [found] = await sql.query<{ row: Record<string, unknown> }>(
    "SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1",
    [id],
    about,
  );
  return found?.row;
}

async function garbageIn({ sql }: ClusterDatabase): Promise<string[]> {
  const found = await sql.query<{ prefix: string }>("SELECT prefix FROM garbage ORDER BY prefix", [], about);
  return found.map(({ prefix }) => prefix);
}

test("the rows of capsules have the columns of a checkpoint", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const found = await database.sql.query<{ column_name: string }>(
    "SELECT column_name FROM information_schema.columns WHERE table_name = 'capsules'",
    [],
    about,
  );
  const own = ["host", "epoch", "seq", "copy", "last_host", "lost_at", "version", "moving", "stays", "stays_in"];
  assert.deepEqual(
    found.map((each) => each.column_name).sort(),
    [...capsuleColumns, ...checkpointColumns, ...own].sort(),
  );
});

test("a release and an acquire may be repeated, and each is for its epoch alone", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const row = rowOf("cl-1", 4, { labels: '{"a":"b"}' });
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  const release = releasing(row, "a");
  await assert.rejects(sql.call("release_capsule", releasing(row, "b"), about), raised("CP008"));
  await assert.rejects(sql.call("release_capsule", releasing(rowOf("cl-1", 0), "a"), about), raised("CP009"));
  await sql.call("release_capsule", release, about);
  await sql.call("release_capsule", release, about);
  const released = decodeReleased(await rowIn(database, "cl-1"));
  assert.deepEqual([released.host, released.epoch, released.lastHost], [null, 1, "a"]);
  assert.deepEqual([released.row.labels, released.row.revision], ['{"a":"b"}', 4]);
  assert.deepEqual(released.kept.envs, kept.envs);
  await assert.rejects(sql.call("release_capsule", releasing(row, "a", 1, "00000002"), about), raised("CP008"));

  const acquire = acquiring("cl-1", "b");
  const held = decodeReleased(await sql.call("acquire_capsule", acquire, about));
  assert.deepEqual([held.host, held.epoch, held.lastHost], ["b", 2, "a"]);
  assert.deepEqual(decodeReleased(await sql.call("acquire_capsule", acquire, about)), held);
  await assert.rejects(sql.call("acquire_capsule", acquiring("cl-1", "c"), about), raised("CP008"));
  await assert.rejects(sql.call("acquire_capsule", acquiring("cl-1", "b", 1, { copy: 8 }), about), raised("CP008"));
  // Late statements of the former holder change nothing.
  await assert.rejects(sql.call("release_capsule", release, about), raised("CP008"));
  const copy = { ...columnsOf(rowOf("cl-1", 9, { labels: "{}" })), copy: 99, epoch: 1 };
  for (const host of ["a", "b"]) assert.equal(await sql.call("copy_status", [JSON.stringify([copy]), host], about), 0);
  assert.equal((await rowIn(database, "cl-1"))?.labels, '{"a":"b"}');
  assert.deepEqual(await garbageIn(database), []);
});

test("a database that was put back, or has forgotten a holder, decides no release", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  const release = releasing(rowOf("cl-1", 4), "a");
  await assert.rejects(sql.call("release_capsule", releasing(rowOf("cl-1", 4), "a", 2), about), raised("CP016"));
  const [{ timeline } = {}] = await sql.query<{ timeline: string }>("SELECT timeline FROM cluster", [], about);
  await sql.query("UPDATE cluster SET timeline = 'another'", [], about);
  await assert.rejects(sql.call("release_capsule", release, about), raised("CP016"));
  assert.equal((await rowIn(database, "cl-1"))?.host, "a");
  await sql.query("UPDATE cluster SET timeline = $1", [timeline], about);
  await sql.call("release_capsule", release, about);
});

test("a release that was sent again after its capsule was acquired by the same host does nothing", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const row = rowOf("cl-1", 4);
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  // It was never received: the host acquires its own capsule before it runs again.
  const held = decodeReleased(
    withoutIntent({
      ...((await sql.call("acquire_capsule", acquiring("cl-1", "a", 1, { intent: "resume" }), about)) as object),
      ...JSON.parse(String(releasing(row, "a")[3])),
    }),
  );
  assert.deepEqual([held.host, held.epoch], ["a", 2]);
  await assert.rejects(sql.call("release_capsule", releasing(row, "a"), about), raised("CP008"));
  const found = await rowIn(database, "cl-1");
  assert.deepEqual([found?.host, found?.epoch, found?.intent], ["a", 2, "resume"]);
});

test("one of 16 hosts' calls acquires a capsule", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const pools = await Promise.all(Array.from({ length: 4 }, () => Postgres.open({ url: database.url, ...patient })));
  await database.sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  await database.sql.call("release_capsule", releasing(rowOf("cl-1", 4), "a"), about);
  const calls = Array.from({ length: 16 }, (_, index) =>
    pools[index % 4]!.call("acquire_capsule", acquiring("cl-1", "abc"[index % 3]!, 1, { copy: index }), about),
  );
  const results = await Promise.allSettled(calls);
  assert.equal(results.filter(({ status }) => status === "fulfilled").length, 1);
  assert.ok(results.every((each) => each.status === "fulfilled" || raised("CP008")(each.reason)));
  assert.equal((await rowIn(database, "cl-1"))?.epoch, 2);
  await Promise.all(pools.map((each) => each.close()));
});

test("of 40 acquires at once as many are admitted as the team's quotas have room for", { skip }, async () => {
  await using database = await clusterDatabase(server, { running_vcpus_max: 10 });
  const { sql } = database;
  const ids = Array.from({ length: 40 }, (_, index) => `cl-${index}`);
  for (const id of ids) {
    await sql.call("create_capsule", creating("a", rowOf(id, 1)), about);
    await sql.call("release_capsule", releasing(rowOf(id, 4), "a"), about);
  }
  const results = await Promise.allSettled(
    ids.map((id, index) =>
      sql.call("acquire_capsule", acquiring(id, "abc"[index % 3]!, 1, { intent: "resume" }), about),
    ),
  );
  const refused = results.filter((each) => each.status === "rejected");
  assert.equal(refused.length, 30);
  assert.ok(refused.every(({ reason }) => reason.code === "quota_exceeded"));
  // A refused one is as it was, and can be acquired without a VM.
  const id = ids[results.findIndex(({ status }) => status === "rejected")]!;
  assert.deepEqual((await rowIn(database, id))?.host, null);
  await sql.call("acquire_capsule", acquiring(id, "b"), about);
});

test("a released capsule is blocked by its template's end, and what a holder says later takes nothing back", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.call("create_capsule", creating("a", capsuleRow("cl-0")), about);
  const template = {
    ...{ storage: "st-1", team_id: "team-blue", name: "tools", vcpus: 1, memory_mb: 512, disk_mb: 1, can_grow: 1 },
    ...{ size_bytes: 9, created_at: 5 },
  };
  await sql.call("capture_capsule", ["cl-0", 1, "a", 1, JSON.stringify(template), false, null], about);
  const of = (id: string, revision: number) => rowOf(id, revision, { storage: "st-1", template: "tools" });
  for (const id of ["cl-1", "cl-2"]) await sql.call("create_capsule", creating("a", of(id, 1)), about);
  await sql.call("release_capsule", releasing(of("cl-1", 4), "a"), about);
  await sql.call("retire_template", ["st-1", 7], about);
  const acquire = acquiring("cl-1", "b", 1, { intent: "resume" });
  await assert.rejects(sql.call("acquire_capsule", acquire, about), raised("CP006"));
  // Its holder has not heard of it.
  assert.equal(
    await sql.call("copy_status", [JSON.stringify([{ ...columnsOf(of("cl-2", 3)), copy: 9, epoch: 1 }]), "a"], about),
    1,
  );
  await sql.call("release_capsule", releasing(of("cl-2", 4), "a"), about);
  assert.equal((await rowIn(database, "cl-2"))?.blocked_by, "tools");
});

test("a checkpoint that no row names any longer is garbage, and one that a row names is none", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  await sql.call("release_capsule", releasing(rowOf("cl-1", 4), "a"), about);
  await sql.call("add_garbage", [["capsules/cl-1/1.4.00000001", "capsules/cl-1/1.3.0badcafe"]], about);
  assert.deepEqual(await garbageIn(database), ["capsules/cl-1/1.3.0badcafe"]);
  const held = await sql.call<Record<string, unknown>>("acquire_capsule", acquiring("cl-1", "b"), about);
  // Given back as it was: a fetch has failed.
  await sql.call("release_capsule", ["cl-1", 2, "b", JSON.stringify(held)], about);
  const given = decodeReleased(await rowIn(database, "cl-1"));
  assert.deepEqual([given.host, given.epoch, given.lastHost], [null, 2, "a"]);
  assert.deepEqual(await garbageIn(database), ["capsules/cl-1/1.3.0badcafe"]);
  await sql.call("acquire_capsule", acquiring("cl-1", "b", 2, { copy: 8 }), about);
  await sql.call("release_capsule", releasing(rowOf("cl-1", 6), "b", 3), about);
  assert.deepEqual(await garbageIn(database), ["capsules/cl-1/1.3.0badcafe", "capsules/cl-1/1.4.00000001"]);
  assert.equal((await rowIn(database, "cl-1"))?.last_host, "b");
  await assert.rejects(sql.call("delete_capsule", ["cl-1", 2, null], about), raised("CP008"));
  await assert.rejects(sql.call("delete_capsule", ["cl-1", 3, "b"], about), raised("CP008"));
  await sql.call("delete_capsule", ["cl-1", 3, null], about);
  await sql.call("delete_capsule", ["cl-1", 3, null], about);
  assert.equal((await garbageIn(database)).length, 3);
  await assert.rejects(sql.call("acquire_capsule", acquiring("cl-1", "c", 3), about), raised("CP003"));
  await assert.rejects(sql.call("release_capsule", releasing(rowOf("cl-1", 6), "b", 3), about), raised("CP003"));
});

test("a release names a checkpoint of a capsule that is paused, and of this revision", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1)), about);
  const release = async (change: object) => {
    const [id, epoch, host, text] = releasing(rowOf("cl-1", 4), "a");
    const row = JSON.stringify({ ...JSON.parse(String(text)), ...change });
    await assert.rejects(sql.call("release_capsule", [id, epoch, host, row], about), raised("CP012"));
  };
  await release({ status: "running" });
  await release({ checkpoint: null });
  await release({ checkpoint_revision: 5 });
  assert.equal((await rowIn(database, "cl-1"))?.host, "a");
});

test("an Idempotency-Key's refusal tells nothing of the answer that was kept", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  const keyed = {
    ...{ team_id: "team-blue", route: "/v1/capsules", key: "k", body_hash: "h", status: 201, answer: "secret" },
    keep_ms: 86_400_000,
  };
  await sql.call("create_capsule", creating("a", rowOf("cl-1", 1), { keyed }), about);
  const again = sql.call("create_capsule", creating("b", rowOf("cl-2", 1), { keyed }), about);
  await assert.rejects(again, (error: CapsuleError & { about?: object }) => {
    assert.deepEqual(error.about, { body_hash: "h" });
    return raised("CP007")(error);
  });
});
