/** `capsule admin cluster leave` where no server of the folder runs: what it leaves behind, and what it refuses. */
import assert from "node:assert/strict";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { AuditShipping } from "../../src/cluster/audit-shipping.ts";
import { type ClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { templateColumns } from "../../src/cluster/foundation.ts";
import { placeOf, readHostFile } from "../../src/cluster/host-file.ts";
import { drainHost } from "../../src/cluster/host-list.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { AuditRows } from "../../src/db/audit-rows.ts";
import { CapsuleRows } from "../../src/db/capsule-rows.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { IdempotencyRows } from "../../src/db/idempotency-rows.ts";
import { type LeaveStepName, leaveSteps } from "../../src/host/steps.ts";
import { secretKeyName } from "../../src/secret.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { waitFor } from "../wait-for.ts";
import { nothing, silent, World } from "./joined-folder.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, creating, joining, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const work = mkdtempSync(join(tmpdir(), "capsule-leave-"));
after(() => rmSync(work, { recursive: true }));
const template = {
  ...{ storage: "t0123456789abcdef", teamId: "team-blue", name: "tools", vcpus: 1, memoryMb: 512, diskMb: 2_048 },
  ...{ canGrow: 1, sizeBytes: 1, createdAt: 1, retiredAt: null },
};

function audit(dataDir: string, actions: readonly string[]): number[] {
  const database = openDatabase(databasePath(dataDir));
  const entry = { at: 1, teamId: "team-blue", keyId: "key-1", keyName: "first", address: "", capsuleId: null };
  const rows = actions.map((subject) => ({ ...entry, action: "key.create" as const, subject, status: 201 }));
  const appended = new AuditRows(database).append(rows).map(({ id }) => id);
  database.close();
  return appended;
}

/** As a server of the folder would. */
async function shipFrom(dataDir: string, sql: Postgres, host: string): Promise<void> {
  const database = openDatabase(databasePath(dataDir));
  await new AuditShipping({ sql, host, rows: new AuditRows(database), log: silent }).ship();
  database.close();
}

/** The folder has an audit entry that was not sent, an upload that was cut off, a release with its folder, and a kept answer. */
function used(dataDir: string): void {
  audit(dataDir, ["first"]);
  const database = openDatabase(databasePath(dataDir));
  const holding = new HoldingRows(database);
  const columns = JSON.stringify({ revision: 3, checkpoint: "capsules/cl-gone/1.2.aa", checkpoint_sha256: "s" });
  holding.released.note({ id: "cl-gone", epoch: 1, columns }, Date.now());
  holding.noteUpload("capsules/cl-other/1.2.bb", 1);
  const key = { teamId: "team-blue", route: "/v1/capsules", key: "k" };
  const answer = { bodyHash: "h", status: 201, answer: "{}", keptAt: Date.now() };
  new IdempotencyRows(database).keep({ ...key, ...answer }, { rows: 10, bytes: 1_000 });
  database.close();
  mkdirSync(join(dataDir, "released", "cl-gone.1.2"), { recursive: true });
  writeFileSync(join(dataDir, "released", "cl-gone.1.2", "memory"), "memory");
}

function countsOf(dataDir: string): number[] {
  const database = openDatabase(databasePath(dataDir));
  const counts = ["released", "uploads", "idempotency", "audit"].map(
    (table) => database.prepare(`SELECT COUNT(*) AS count FROM ${table}`).get()!.count as number,
  );
  database.close();
  return counts;
}

async function requireLeft({ sql, dataDir, file }: World): Promise<void> {
  assert.deepEqual(countsOf(dataDir), [0, 0, 0, 1]);
  assert.deepEqual(
    ["host.json", "left.json", "released"].map((name) => existsSync(join(dataDir, name))),
    [false, true, false],
  );
  assert.equal(readFileSync(join(dataDir, secretKeyName), "latin1").trim(), file.valuesKey.toString("hex"));
  const told = await sql.query("SELECT subject FROM audit WHERE team_id = 'team-blue'", [], about);
  assert.deepEqual(told, [{ subject: "first" }]);
  const garbage = await sql.query("SELECT prefix FROM garbage", [], about);
  assert.deepEqual(garbage, [{ prefix: "capsules/cl-other/1.2.bb" }]);
  const hosts = await sql.query("SELECT name FROM hosts ORDER BY name", [], about);
  assert.deepEqual(hosts, [{ name: "a" }, { name: "b" }, { name: "c" }]);
}

test("a host that holds nothing leaves, and its folder has nothing of the cluster but its key, teams and audit entries", {
  skip,
}, async () => {
  await using world = await World.make(server, work);
  used(world.dataDir);
  const { status, stderr } = world.leave();
  assert.equal(status, 0, stderr);
  assert.match(stderr, /^capsule: host two has left the cluster; .* serves alone: start it without CAPSULE_CLUSTER\n$/);
  await requireLeft(world);
  const again = world.leave();
  assert.equal(again.status, 0);
  assert.match(again.stderr, /has left the cluster already/);
  const started = world.capsule(["serve"]);
  assert.equal(started.status, 1);
  assert.match(
    started.stderr,
    /has left its cluster: start it without CAPSULE_CLUSTER, or, to join again, remove .*left\.json/,
  );
});

test("a folder that has left joins again under any name, with a later epoch, and sends no audit entry twice", {
  skip,
}, async () => {
  await using world = await World.make(server, work);
  used(world.dataDir);
  const { dataDir } = world;
  assert.equal((await world.join(dataDir, undefined)).epoch, 2);
  for (const [name, epoch] of [
    ["two", 3],
    ["four", 1],
    ["two", 4],
  ] as const) {
    const { status, stderr } = world.leave();
    assert.equal(status, 0, stderr);
    await assert.rejects(world.join(dataDir, name), /has left its cluster/);
    rmSync(join(dataDir, "left.json"));
    assert.deepEqual(pick(await world.join(dataDir, name)), { name, epoch });
    audit(dataDir, [`as-${name}-${epoch}`]);
    await shipFrom(dataDir, world.sql, name);
  }
  const told = await world.rows<{ subject: string }>("SELECT subject FROM audit ORDER BY seq");
  assert.deepEqual(
    told.map(({ subject }) => subject),
    ["first", "as-two-3", "as-four-1", "as-two-4"],
  );
});

const pick = ({ name, epoch }: { name: string; epoch: number }) => ({ name, epoch });

test("another folder takes the name of a host that has left, and its audit entries are its own", { skip }, async () => {
  await using world = await World.make(server, work);
  used(world.dataDir);
  assert.equal(world.leave().status, 0);
  const other = world.newFolder();
  assert.deepEqual(pick(await world.join(other, "two")), { name: "two", epoch: 2 });
  audit(other, ["of the other"]);
  await shipFrom(other, world.sql, "two");
  await shipFrom(other, world.sql, "two");
  const told = await world.rows<{ subject: string }>("SELECT subject FROM audit ORDER BY seq");
  assert.deepEqual(
    told.map(({ subject }) => subject),
    ["first", "of the other"],
  );
  rmSync(join(world.dataDir, "left.json"));
  await assert.rejects(world.join(world.dataDir, "two"), /another data folder has joined as host two/);
  assert.equal(existsSync(join(world.dataDir, "host.json")), false);
});

for (const step of leaveSteps) {
  test(`a command that was ended at ${step} is finished by the same one`, { skip }, async () => {
    await using world = await World.make(server, work);
    used(world.dataDir);
    const ended = world.leave({ CAPSULE_CRASH_AT: step });
    assert.equal(ended.signal ?? ended.status, "SIGKILL", ended.stderr);
    const alone = world.capsule(["serve"], { CAPSULE_CLUSTER: "" });
    assert.match(alone.stderr, /belongs to a cluster/);
    const { status, stderr } = world.leave();
    assert.equal(status, 0, stderr);
    await requireLeft(world);
  });

  test(`a command that was ended at ${step} leaves a folder that goes on as a host of the cluster`, {
    skip,
  }, async () => {
    await using world = await World.make(server, work);
    used(world.dataDir);
    const before = readHostFile(world.dataDir)!;
    assert.equal(world.leave({ CAPSULE_CRASH_AT: step }).signal, "SIGKILL");
    assert.deepEqual(pick(await world.join(world.dataDir, undefined)), { name: "two", epoch: 2 });
    const isNew = (["leave.left", "leave.cleared"] satisfies LeaveStepName[] as LeaveStepName[]).includes(step);
    assert.equal(readHostFile(world.dataDir)!.nonce !== before.nonce, isNew);
    assert.equal(await world.stateOf("two"), isNew ? "up" : "draining");
    const { status, stderr } = world.leave();
    assert.equal(status, 0, stderr);
    await requireLeft(world);
  });
}

test("a host that holds something stays, drained, and each thing is named with its reason", { skip }, async () => {
  await using world = await World.make(server, work);
  const before = world.files();
  await world.sql.call(
    "create_capsule",
    creating("two", capsuleRow("cl-held", { status: "stopped", intent: null })),
    about,
  );
  const { status, stderr } = world.leave();
  assert.equal(status, 1);
  assert.match(stderr, /host two does not leave, and takes no capsules: it holds 1, and its server, .* does not run\n/);
  assert.match(stderr, /\ncl-held stopped: its disk is on this host alone\n/);
  assert.match(stderr, /capsule admin hosts resume two ends the drain\n$/);
  assert.equal(await world.stateOf("two"), "draining");
  assert.deepEqual(world.files(), before);
  // The cluster has forgotten it, and the folder has not.
  await world.sql.query("DELETE FROM capsules", [], about);
  const database = openDatabase(databasePath(world.dataDir));
  database.exec("INSERT INTO teams (id, name, created_at) VALUES ('team-blue', 'blue', 1)");
  new CapsuleRows(database).insert(capsuleRow("cl-held", { status: "stopped", intent: null }));
  database.close();
  const kept = world.leave();
  assert.equal(kept.status, 1);
  assert.match(kept.stderr, /has a capsule that the cluster does not have at this host/);
  assert.deepEqual(world.files(), before);
});

test("a template that no other host could get keeps its host, and one of the bucket does not", { skip }, async () => {
  await using world = await World.make(server, work);
  const columns = JSON.stringify({ ...templateColumns(template), made_on: "two" });
  await world.sql.query(
    "INSERT INTO templates SELECT * FROM jsonb_populate_record(NULL::templates, $1)",
    [columns],
    about,
  );
  const { status, stderr } = world.leave();
  assert.equal(status, 1);
  assert.match(
    stderr,
    /no other host could get these templates\ntools of team blue: its files are on this host alone\n$/,
  );
  assert.equal(await world.stateOf("two"), "up");
  await world.sql.query(
    `INSERT INTO artifacts (kind, key, prefix, manifest_sha256, bytes, created_at, is_pending)
     VALUES ('template', $1, 'template/x/1', 's', 1, 1, false)`,
    [template.storage],
    about,
  );
  const [catalog] = await world.rows<{ catalog: number }>("SELECT catalog FROM cluster");
  const left = world.leave();
  assert.equal(left.status, 0, left.stderr);
  assert.deepEqual(await world.rows("SELECT made_on, t.catalog, retired_at FROM templates t"), [
    { made_on: "", catalog: catalog!.catalog + 1, retired_at: null },
  ]);
  // It joins again with a template that the cluster has, and not with another one.
  rmSync(join(world.dataDir, "left.json"));
  const other = { ...nothing, templates: [{ ...template, storage: "tother", name: "more" }] };
  await assert.rejects(world.join(world.dataDir, "two", other), /has the template more/);
  assert.equal((await world.join(world.dataDir, "two", { ...nothing, templates: [template] })).epoch, 2);
});

test("what cannot leave is refused in one sentence, and nothing is changed", { skip }, async () => {
  await using world = await World.make(server, work);
  used(world.dataDir);
  const { dataDir, path, sql, file } = world;
  const refusal = async (more: Record<string, string> = {}, from = dataDir) => {
    const before = [world.files(from), existsSync(databasePath(from)) ? countsOf(from) : []];
    const { status, stderr } = world.leave(more, from);
    assert.equal(status, 1, stderr);
    assert.deepEqual([world.files(from), existsSync(databasePath(from)) ? countsOf(from) : []], before);
    assert.equal(await world.stateOf("two"), "up");
    return stderr;
  };
  assert.match(await refusal({ CAPSULE_CLUSTER: "" }), /this host is alone\n.*Set CAPSULE_CLUSTER/);
  assert.match(await refusal({}, world.newFolder()), /has joined no cluster\n.*on the host that is to leave/);
  const copy = world.newFolder();
  cpSync(dataDir, copy, { recursive: true });
  assert.match(await refusal({}, copy), /is a copy of that of host two, or was moved\n.*hosts moved two/);
  const fileOf = (name: string, more: Partial<ClusterFile>) => {
    const made = join(mkdtempSync(join(work, "file-")), name);
    writeClusterFile(made, { ...file, ...more });
    return { CAPSULE_CLUSTER: made };
  };
  assert.match(await refusal(fileOf("other", { cluster: "f".repeat(16) })), /belongs to another cluster/);
  const away = fileOf("away", { postgres: "postgres://x@127.0.0.1:9/x" });
  assert.match(await refusal(away), /cannot be left, since its database cannot be used/);
  const wrong = fileOf("wrong", { postgres: server.newDatabase() });
  assert.match(await refusal(wrong), /the database has no cluster/);
  await sql.query("UPDATE cluster SET timeline = 'FFFFFFFF'", [], about);
  assert.match(await refusal(), /database was put back\n.*cluster confirm first/);
  await sql.query("UPDATE cluster SET timeline = split_part(database_place(), '/', 2)", [], about);
  const nonce = readHostFile(dataDir)!.nonce;
  await sql.query("UPDATE hosts SET nonce = 'another' WHERE name = 'two'", [], about);
  assert.match(await refusal(), /the cluster has no host two of this data folder/);
  await sql.query("UPDATE hosts SET nonce = $1 WHERE name = 'two'", [nonce], about);
  await sql.query("UPDATE hosts SET state = CASE WHEN name = 'two' THEN 'gone' ELSE 'up' END", [], about);
  assert.match(world.leave().stderr, /host two was declared gone/);
  assert.ok(existsSync(path));
});

test("a copy from before the leave joins anew where it has no capsules, and is refused where it has", {
  skip,
}, async () => {
  await using world = await World.make(server, work);
  const copy = world.newFolder();
  cpSync(world.dataDir, copy, { recursive: true });
  assert.equal(world.leave().status, 0);
  const before = world.files(copy);
  const held = { ...nothing, capsules: 1 };
  await assert.rejects(world.join(copy, undefined, held), /has a capsule, which the cluster does not have/);
  assert.deepEqual(world.files(copy), before);
  await world.sql.call("join_host", joining("two", { nonce: "another" }), about);
  await assert.rejects(world.join(copy, undefined), /another data folder has joined as host two/);
  assert.deepEqual(world.files(copy), before);
  await world.sql.query("DELETE FROM hosts WHERE name = 'two'", [], about);
  assert.equal((await world.join(copy, undefined)).epoch, 2);
  assert.notEqual(readHostFile(copy)!.nonce, JSON.parse(readFileSync(join(world.dataDir, "left.json"), "utf8")).nonce);
  assert.equal(readHostFile(copy)!.place, placeOf(copy));
});

test("a create that is under way is waited for, and its capsule keeps the host", { skip }, async () => {
  await using world = await World.make(server, work);
  const { sql } = world;
  const other = await Postgres.open({ url: world.file.postgres, ...patient });
  const { nonce } = readHostFile(world.dataDir)!;
  const begun = Promise.withResolvers<void>();
  const goOn = Promise.withResolvers<void>();
  const creation = other.transact(async (each) => {
    await each.query("SELECT create_capsule($1, $2, $3, $4, $5)", creating("two", capsuleRow("cl-late")));
    begun.resolve();
    await goOn.promise;
  });
  await begun.promise;
  await drainHost(sql, "two");
  const leaving = sql.call("leave_host", ["two", nonce], about);
  leaving.catch(() => {});
  const waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%leave_host%'";
  await waitFor("the host to wait for the create", async () => (await world.rows(waiting)).length > 0);
  goOn.resolve();
  await creation;
  await assert.rejects(leaving, { code: "conflict", message: /host two holds capsules/ });
  await other.close();
});

test("of two hosts that leave at once one is the last, and stays", { skip }, async () => {
  await using world = await World.make(server, work);
  const { sql } = world;
  await sql.query("DELETE FROM hosts WHERE name IN ('b', 'c')", [], about);
  for (const name of ["a", "two"]) await drainHost(sql, name);
  const nonces = { a: "nonce-a", two: readHostFile(world.dataDir)!.nonce };
  const outcomes = await Promise.allSettled(
    Object.entries(nonces).map(([name, nonce]) => sql.call("leave_host", [name, nonce], about)),
  );
  assert.deepEqual(outcomes.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  assert.equal((await world.rows("SELECT 1 FROM hosts")).length, 1);
});
