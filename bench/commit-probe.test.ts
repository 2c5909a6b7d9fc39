import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { type CapsuleRow, CapsuleRows } from "../src/db/capsule-rows.ts";
import { databasePath, openDatabase, transact, withoutSync } from "../src/db/database.ts";
import { TeamRows } from "../src/db/team-rows.ts";
import { watchCommits } from "./commit-probe.ts";

const marks: string[] = [];
watchCommits((what) => marks.push(what));

function open(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), "capsule-commits-"));
  const database = openDatabase(databasePath(folder));
  t.after(() => {
    database.close();
    rmSync(folder, { recursive: true });
  });
  return database;
}

function marksOf(work: () => unknown): string[] {
  marks.length = 0;
  work();
  return [...marks];
}

const row = {
  id: "cl-a",
  name: null,
  labels: "{}",
  status: "starting",
  revision: 1,
  intent: "create",
  template: "minimal",
  storage: null,
  blockedBy: null,
  vcpus: 1,
  memoryMb: 512,
  diskMb: 4_096,
  timeoutSec: 0,
  createdAt: 1,
  lastUpdated: 1,
  startedAt: null,
  lastActiveAt: null,
  errorReason: null,
  onTimeout: "pause",
  lifetimeSec: 0,
  expiresAt: null,
  onExpiry: "destroy",
  retentionSec: 0,
  autoResume: 0,
  network: null,
} as const satisfies Omit<CapsuleRow, "teamId">;

test("commits of capsules are marked where the server syncs them, and only there", (t) => {
  const database = open(t);
  const { id: teamId } = new TeamRows(database).ensure({ id: "team", name: "team", createdAt: 1 });
  const rows = new CapsuleRows(database);
  const synced = ["disk → commit of capsules", "disk ← commit of capsules"];
  assert.deepEqual(
    marksOf(() => assert.ok(rows.insert({ ...row, teamId }))),
    synced,
  );
  assert.deepEqual(
    marksOf(() => assert.ok(rows.change("cl-a", 1, { status: "running" }))),
    synced,
  );
  assert.deepEqual(
    marksOf(() => assert.ok(rows.changeUnsynced("cl-a", 2, { intent: "pause" }))),
    [],
  );
  assert.deepEqual(
    marksOf(() => rows.noteActive([["cl-a", 5]])),
    [],
  );
  assert.deepEqual(
    marksOf(() => rows.get("cl-a")),
    [],
  );
});

test("a transaction is one commit of all its tables; one that is rolled back, unsynced or empty is none", (t) => {
  const database = open(t);
  database.exec("CREATE TABLE one (a); CREATE TABLE two (a)");
  const one = database.prepare("INSERT INTO one VALUES (1)");
  const two = database.prepare("DELETE FROM two");
  const both = () => {
    one.run();
    two.run();
  };
  assert.deepEqual(
    marksOf(() => transact(database, both)),
    ["disk → commit of one, two", "disk ← commit of one, two"],
  );
  assert.deepEqual(
    marksOf(() => withoutSync(database, () => transact(database, both))),
    [],
  );
  assert.deepEqual(
    marksOf(() => transact(database, () => {})),
    [],
  );
  const failing = () => {
    both();
    throw new Error("undone");
  };
  assert.deepEqual(
    marksOf(() => assert.throws(() => transact(database, failing), /undone/)),
    [],
  );
  assert.deepEqual(
    marksOf(() => transact(database, () => one.run())),
    ["disk → commit of one", "disk ← commit of one"],
  );
});
