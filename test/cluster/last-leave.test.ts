/** `capsule admin cluster leave` of the last host, where no server of the folder runs: the cluster ends, and the folder is whole. */
import assert from "node:assert/strict";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { templateColumns } from "../../src/cluster/foundation.ts";
import { readHostFile } from "../../src/cluster/host-file.ts";
import { addKey } from "../../src/cluster/keys.ts";
import { endCluster } from "../../src/cluster/last-host.ts";
import { CapsuleRows } from "../../src/db/capsule-rows.ts";
import { CatalogRows } from "../../src/db/catalog-rows.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { IdempotencyRows } from "../../src/db/idempotency-rows.ts";
import { TemplateRows } from "../../src/db/template-rows.ts";
import { leaveSteps } from "../../src/host/steps.ts";
import { secretKeyName } from "../../src/secret.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { World } from "./joined-folder.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, creating, joining } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const work = mkdtempSync(join(tmpdir(), "capsule-last-leave-"));
after(() => rmSync(work, { recursive: true }));

const key = {
  ...{ id: "key-1", teamId: "team-blue", label: "first", prefix: "cap_", hash: "aa".repeat(32), createdAt: 1 },
  ...{ expiresAt: null, madeBy: null, isSession: false },
};
const kept = { team_id: "team-blue", route: "/v1/capsules", key: "k", body_hash: "h", status: 201, answer: "{}" };
const template = {
  ...{ storage: "t0123456789abcdef", teamId: "team-blue", name: "tools", vcpus: 1, memoryMb: 512, diskMb: 2_048 },
  ...{ canGrow: 1, sizeBytes: 1, createdAt: 1, retiredAt: null },
};
const held = capsuleRow("cl-held", { status: "paused", intent: null, name: "mine" });

/** Host two alone: it holds a capsule of epoch 3, and another host has answered with a key. */
async function lastHost(): Promise<World> {
  const world = await World.make(server, work);
  const { sql, dataDir } = world;
  await addKey(sql, key, { revokedKeepMs: 1 });
  await sql.call(
    "create_capsule",
    creating("a", capsuleRow("cl-other"), { keyed: { ...kept, keep_ms: 3_600_000 } }),
    about,
  );
  await sql.call("create_capsule", creating("two", held), about);
  await sql.query("UPDATE capsules SET epoch = 3 WHERE id = 'cl-held'", [], about);
  await sql.query("UPDATE hosts SET state = 'gone' WHERE name <> 'two'", [], about);
  withDatabase(dataDir, (database) => {
    database.exec("INSERT INTO teams (id, name, created_at) VALUES ('team-blue', 'blue', 1)");
    new CapsuleRows(database).insert(held);
    new HoldingRows(database).hold("cl-held", 3);
  });
  mkdirSync(join(dataDir, "released", "cl-old.1.2"), { recursive: true });
  return world;
}

function withDatabase<T>(dataDir: string, use: (database: ReturnType<typeof openDatabase>) => T): T {
  const database = openDatabase(databasePath(dataDir));
  try {
    return use(database);
  } finally {
    database.close();
  }
}

async function requireAlone({ sql, dataDir, file }: World): Promise<void> {
  assert.deepEqual(
    ["host.json", "left.json", "released"].map((name) => existsSync(join(dataDir, name))),
    [false, true, false],
  );
  assert.equal(readFileSync(join(dataDir, secretKeyName), "latin1").trim(), file.valuesKey.toString("hex"));
  withDatabase(dataDir, (database) => {
    assert.deepEqual(
      new CapsuleRows(database).all().map(({ id, name, status }) => [id, name, status]),
      [["cl-held", "mine", "paused"]],
    );
    assert.deepEqual(
      new CatalogRows(database).keys().map(({ id, revokedAt }) => [id, revokedAt]),
      [["key-1", null]],
    );
    const answer = new IdempotencyRows(database).get({ teamId: "team-blue", route: "/v1/capsules", key: "k" });
    assert.deepEqual([answer?.status, answer?.answer, answer?.bodyHash], [201, "{}", "h"]);
  });
  const ended = await sql.query<{ ended: boolean }>("SELECT ended_at > 0 AS ended FROM cluster", [], about);
  assert.deepEqual(ended, [{ ended: true }]);
}

test("the cluster ends with its last host, whose folder keeps capsules, keys and answers", { skip }, async () => {
  await using world = await lastHost();
  const { status, stderr } = world.leave();
  assert.equal(status, 0, stderr);
  assert.match(stderr, /cl-other stays behind: it was on host a, which is gone\n/);
  assert.match(stderr, /to keep them, set .*CAPSULE_CAPSULES_MAX=1000000/);
  assert.match(stderr, /capsule: host two has left the cluster; .* serves alone: start it without CAPSULE_CLUSTER\n$/);
  await requireAlone(world);
  assert.match(world.leave().stderr, /has left the cluster already/);
});

test("no host joins a cluster that has ended, and nothing is decided in it", { skip }, async () => {
  await using world = await lastHost();
  assert.equal(world.leave().status, 0);
  const ended = /the cluster has ended, since its last host has left it/;
  await assert.rejects(world.join(world.newFolder(), "five"), ended);
  await assert.rejects(addKey(world.sql, { ...key, id: "key-2", hash: "bb".repeat(32) }, { revokedKeepMs: 1 }), ended);
  assert.deepEqual(await world.rows("SELECT name, state FROM hosts WHERE state <> 'gone'"), []);
  const checked = world.capsule(["admin", "cluster", "check"]);
  assert.equal(checked.status, 1);
  assert.match(checked.stderr, ended);
});

for (const step of leaveSteps) {
  test(`a command of the last host that was ended at ${step} is finished by the same one`, { skip }, async () => {
    await using world = await lastHost();
    const { dataDir } = world;
    const ended = world.leave({ CAPSULE_CRASH_AT: step });
    assert.equal(ended.signal ?? ended.status, "SIGKILL", ended.stderr);
    assert.match(world.capsule(["serve"], { CAPSULE_CLUSTER: "" }).stderr, /belongs to a cluster/);
    const hasEnded = step !== "leave.told";
    if (hasEnded) await assert.rejects(world.join(dataDir, undefined), /the cluster has ended/);
    else assert.equal((await world.join(dataDir, undefined)).epoch, 2);
    const { status, stderr } = world.leave();
    assert.equal(status, 0, stderr);
    await requireAlone(world);
  });
}

test("a copy of the folder from before the end is refused where it has capsules", { skip }, async () => {
  await using world = await lastHost();
  const copy = world.newFolder();
  cpSync(world.dataDir, copy, { recursive: true });
  assert.equal(world.leave({ CAPSULE_CRASH_AT: "leave.left" }).signal, "SIGKILL");
  const { status, stderr } = world.leave({}, copy);
  assert.equal(status, 1);
  assert.match(stderr, /has a capsule from before its host has left: it is an older copy/);
  assert.equal(readHostFile(copy)?.name, "two");
  assert.equal(world.leave().status, 0);
  await requireAlone(world);
});

test("what is not in the folder is named, and keeps the host", { skip }, async () => {
  await using world = await lastHost();
  const { sql, dataDir } = world;
  await sql.query("UPDATE capsules SET host = NULL, status = 'paused', intent = NULL WHERE id = 'cl-other'", [], about);
  await sql.query(
    "INSERT INTO templates SELECT * FROM jsonb_populate_record(NULL::templates, $1)",
    [JSON.stringify({ ...templateColumns(template), made_on: "a" })],
    about,
  );
  await sql.query(
    `INSERT INTO artifacts (kind, key, prefix, manifest_sha256, bytes, created_at, is_pending)
     VALUES ('template', $1, 'template/x/1', 's', 1, 1, false)`,
    [template.storage],
    about,
  );
  const before = world.files();
  const { status, stderr } = world.leave();
  assert.equal(status, 1);
  assert.match(stderr, /1 capsules and 1 templates are in the bucket alone, .*; its server, .* does not run\n/);
  assert.match(stderr, /\ncl-other paused: it is on its way\ntools of team blue: its files are on their way\n/);
  assert.deepEqual(world.files(), before);
  assert.equal(await world.stateOf("two"), "up");
  // The host that has fetched them has them all.
  withDatabase(dataDir, (database) => new TemplateRows(database).insert(template));
  await sql.query("DELETE FROM capsules WHERE id = 'cl-other'", [], about);
  assert.equal(world.leave().status, 0);
});

test("a folder that is not as PostgreSQL has it does not leave", { skip }, async () => {
  await using world = await lastHost();
  const { sql, dataDir } = world;
  const other = /does not hold what the cluster says of it\n.*Start its server with CAPSULE_CLUSTER/;
  const refused = (what: string, why = other) => {
    const { status, stderr } = world.leave();
    assert.equal(status, 1, what);
    assert.match(stderr, why, what);
  };
  const local = (statement: string) => withDatabase(dataDir, (database) => database.exec(statement));
  await sql.query("UPDATE capsules SET epoch = 4 WHERE id = 'cl-held'", [], about);
  refused("another epoch");
  await sql.query("UPDATE capsules SET epoch = 3 WHERE id = 'cl-held'", [], about);
  local("UPDATE capsules SET releasing = '{}' WHERE id = 'cl-held'");
  refused("a release that may be under way");
  local("UPDATE capsules SET releasing = NULL WHERE id = 'cl-held'");
  await sql.call("create_capsule", creating("two", capsuleRow("cl-lost")), about);
  refused("a capsule that the folder lacks", /1 capsules are on their way here; its server, .* does not run\n/);
  await sql.query("DELETE FROM capsules WHERE id = 'cl-lost'", [], about);
  withDatabase(dataDir, (database) => new CapsuleRows(database).insert(capsuleRow("cl-more")));
  refused("a capsule that the cluster lacks");
  local("UPDATE capsules SET intent = 'destroy' WHERE id = 'cl-more'");
  assert.equal(world.leave().status, 0);
});

test("a host that joins at the same moment is there, or finds that the cluster has ended", { skip }, async () => {
  await using world = await lastHost();
  const { sql } = world;
  await sql.query("DELETE FROM capsules WHERE id = 'cl-other'", [], about);
  const own = readHostFile(world.dataDir)!;
  const outcomes = await Promise.allSettled([
    endCluster(sql, own, "as"),
    sql.call("join_host", joining("five"), about),
  ]);
  assert.deepEqual(outcomes.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  const [{ hosts }] = (await world.rows<{ hosts: number }>(
    "SELECT COUNT(*)::integer AS hosts FROM hosts WHERE state <> 'gone'",
  )) as [{ hosts: number }];
  assert.equal(hosts, outcomes[0].status === "fulfilled" ? 0 : 2);
});
