/** The operator's lists that have all hosts of a cluster in them, by the commands of one host. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, test } from "node:test";
import { Postgres } from "../../src/cluster/postgres.ts";
import { AuditRows } from "../../src/db/audit-rows.ts";
import { CapsuleRows } from "../../src/db/capsule-rows.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { TeamRows } from "../../src/db/team-rows.ts";
import { Teams } from "../../src/teams/teams.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, patient } from "./statements.ts";

const program = resolve(import.meta.dirname, "../../capsule");
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const dataDir = mkdtempSync(join(tmpdir(), "capsule-operator-lists-"));
after(() => rmSync(dataDir, { recursive: true }));
const [secondMs, entry] = [1_000, { keyId: "key-1", keyName: "ci", address: "", status: 200 }];

function capsule(words: string[], more: Record<string, string> = {}) {
  const environment = { PATH: process.env.PATH ?? "", CAPSULE_DATA: dataDir, ...more };
  return spawnSync(program, words, { encoding: "utf8", env: environment, input: "" });
}

/** A cluster of a folder with team blue, a key of it and a capsule. */
function founded(): { path: string; url: string } {
  const database = openDatabase(databasePath(dataDir));
  const teams = new Teams(new TeamRows(database));
  const { id: teamId } = teams.ensure("blue");
  teams.createKey(teamId, "first");
  new CapsuleRows(database).insert({ ...capsuleRow("cl-own", { status: "paused", intent: null }), teamId });
  new AuditRows(database).append([
    { ...entry, teamId, at: secondMs, action: "exec", capsuleId: "cl-own", subject: "of this host's folder" },
  ]);
  database.close();
  const url = server.newDatabase();
  const { status, stdout, stderr } = capsule(["admin", "cluster", "init", "--postgres", url]);
  assert.equal(status, 0, stderr);
  return { path: stdout.trim(), url };
}

/** As other hosts would have made them. */
const elsewhere = [
  `INSERT INTO capsules SELECT (jsonb_populate_record(c, '{"id": "cl-far", "name": "far"}')).* FROM capsules c WHERE id = 'cl-own'`,
  "INSERT INTO teams (id, name, created_at, catalog) VALUES ('team-red', 'red', 2000, 100)",
  "INSERT INTO teams (id, name, created_at, deleted_at, catalog) VALUES ('team-old', 'old', 2000, 3000, 101)",
  ...["'key-2', now_ms() + 60000, NULL", "'key-3', now_ms() - 1, NULL", "'key-4', NULL, 3000"].map(
    (key, i) =>
      `INSERT INTO keys (id, expires_at, revoked_at, team_id, label, hash, created_at, catalog)
       SELECT ${key}, id, '', 'hash-${i}', 2000, ${102 + i} FROM teams WHERE name = 'blue'`,
  ),
  ...["'st-1', 'tools', NULL", "'st-2', 'gone', 3000"].map(
    (template, i) =>
      `INSERT INTO templates (storage, name, retired_at, team_id, vcpus, memory_mb, disk_mb, can_grow, size_bytes, created_at, made_on, version, catalog)
       SELECT ${template}, id, 1, 512, 1024, 0, 1, 2000, 'two', 1, ${110 + i} FROM teams WHERE name = 'blue'`,
  ),
  ...[2, 3].map(
    (seq) =>
      `INSERT INTO audit (host, host_seq, at, team_id, key_id, key_name, address, action, capsule_id, subject, status, exit_code)
       SELECT 'two', ${seq}, ${seq * secondMs}, id, 'key-2', '', '', 'exec', 'cl-far', 'of host two', 200, ${seq} FROM teams WHERE name = 'blue'`,
  ),
];

test("teams are counted, and their audit log is read, over all hosts; the capsules listed are this host's", {
  skip: lacksPostgres,
}, async () => {
  const { path, url } = founded();
  const sql = await Postgres.open({ url, ...patient });
  for (const statement of elsewhere) await sql.query(statement, [], about);
  await sql.close();
  const lines = (words: string[]) => {
    const { status, stdout, stderr } = capsule(["admin", ...words], { CAPSULE_CLUSTER: path });
    assert.equal(status, 0, stderr);
    return stdout.split("\n").slice(0, -1);
  };
  const counts = lines(["teams", "list"]).map((line) => line.split("\t"));
  assert.deepEqual(
    counts.map(([name, , ...numbers]) => [name, ...numbers]),
    [
      ["blue", "2 keys", "2 capsules", "1 templates"],
      ["red", "0 keys", "0 capsules", "0 templates"],
    ],
  );
  assert.equal(counts[1]![1], "1970-01-01T00:00:02.000Z");
  const ofTwo = (second: number) =>
    `1970-01-01T00:00:0${second}.000Z\texec\t200\tkey-2\tcl-far\tof host two\t${second}`;
  assert.deepEqual(lines(["audit", "--team", "blue"]), [ofTwo(3), ofTwo(2)]);
  assert.deepEqual(lines(["audit", "--team", "blue", "--limit", "1"]), [ofTwo(3)]);
  assert.deepEqual(lines(["audit", "--team", "red"]), []);
  assert.match(
    capsule(["admin", "audit", "--team", "old"], { CAPSULE_CLUSTER: path }).stderr,
    /there is no team "old"/,
  );
  const away = join(dataDir, "away.json");
  const file = { ...JSON.parse(readFileSync(path, "utf8")), postgres: "postgres://x@127.0.0.1:9/x" };
  writeFileSync(away, JSON.stringify(file), { mode: 0o600 });
  for (const words of [
    ["teams", "list"],
    ["audit", "--team", "blue"],
  ]) {
    const { status, stdout, stderr } = capsule(["admin", ...words], { CAPSULE_CLUSTER: away });
    assert.deepEqual([status, stdout], [1, ""]);
    assert.match(stderr, /: the cluster's database is away/);
  }
  const own = lines(["ls"]).map((line) => line.split("\t")[1]);
  assert.deepEqual(own, ["cl-own"]);
});
