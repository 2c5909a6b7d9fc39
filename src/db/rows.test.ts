import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { type CapsuleRow, CapsuleRows } from "./capsule-rows.ts";
import { openDatabase, transact } from "./database.ts";
import { TeamRows } from "./team-rows.ts";

const row: CapsuleRow = {
  id: "cl-one",
  teamId: "team",
  name: null,
  labels: "{}",
  status: "paused",
  revision: 1,
  intent: null,
  template: "minimal",
  storage: "t1",
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
};

/** Two connections to one file, as two programs have them, and one capsule in it. */
function open(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), "capsule-rows-"));
  const here = openDatabase(join(folder, "db"));
  const elsewhere = openDatabase(join(folder, "db"));
  t.after(() => {
    here.close();
    elsewhere.close();
    rmSync(folder, { recursive: true });
  });
  new TeamRows(here).ensure({ id: "team", name: "team", createdAt: 1 });
  const rows = new CapsuleRows(here);
  rows.insert(row);
  return { here, elsewhere, rows };
}

test("every write of a capsule shows at once", (t) => {
  const { rows } = open(t);
  const seen = () => rows.get("cl-one");
  assert.equal(seen()?.revision, 1);
  rows.change("cl-one", 1, { status: "running" });
  assert.equal(seen()?.status, "running");
  rows.noteActive([["cl-one", 7]]);
  assert.equal(seen()?.lastActiveAt, 7);
  rows.block("t1", "tools");
  assert.equal(seen()?.blockedBy, null, "it runs");
  rows.change("cl-one", 2, { status: "stopped" });
  rows.block("t1", "tools");
  assert.equal(seen()?.blockedBy, "tools");
  rows.beginDestroy("cl-one", 3, 0, () => {});
  assert.equal(seen()?.intent, "destroy");
  rows.remove("cl-one");
  assert.equal(seen(), undefined);
});

test("a write by another program shows at once", (t) => {
  const { rows, elsewhere } = open(t);
  assert.equal(rows.get("cl-one")?.status, "paused");
  new CapsuleRows(elsewhere).change("cl-one", 1, { status: "running" });
  assert.equal(rows.get("cl-one")?.status, "running");
});

test("a transaction sees its own writes, and a rollback takes them back", (t) => {
  const { rows, here } = open(t);
  assert.equal(rows.get("cl-one")?.revision, 1);
  const undone = () =>
    transact(here, () => {
      rows.change("cl-one", 1, { status: "running" });
      assert.equal(rows.get("cl-one")?.status, "running", "it sees its own writes");
      throw new Error("undone");
    });
  assert.throws(undone, /undone/);
  assert.equal(rows.get("cl-one")?.status, "paused");
});

test("a key ends at once when this or another program revokes it, or at its expiry", (t) => {
  const { here, elsewhere } = open(t);
  const teams = new TeamRows(here);
  const make = (id: string, expiresAt: number | null) => {
    const hash = Buffer.from(id).toString("hex");
    const key = {
      id,
      teamId: "team",
      label: "",
      prefix: "",
      hash,
      createdAt: 1,
      expiresAt,
      madeBy: null,
      isSession: false,
    };
    teams.insertKey(key);
    return (now: number) => teams.liveKey(hash, now)?.id;
  };
  const [one, two, three] = [make("one", null), make("two", null), make("three", 100)];
  assert.deepEqual([one(1), two(1), three(99)], ["one", "two", "three"]);
  teams.revoke("one", 5);
  assert.equal(one(6), undefined);
  new TeamRows(elsewhere).revoke("two", 5);
  assert.equal(two(6), undefined);
  assert.equal(three(100), undefined);
});

test("of the tombstones the oldest go, by age and by number, but for those of capsules with a row or a folder", (t) => {
  const { rows } = open(t);
  const destroy = (id: string, atMs: number) => {
    rows.insert({ ...row, id });
    rows.beginDestroy(id, 1, atMs, () => {});
  };
  for (const [index, id] of ["a", "b", "c", "d", "e", "f"].entries()) {
    destroy(id, 100 + index);
    if (id !== "a") rows.remove(id);
  }
  const left = () => ["a", "b", "c", "d", "e", "f"].filter((id) => rows.hasTombstone(id)).join("");
  rows.forgetTombstones(100, []);
  assert.equal(left(), "abcdef");
  rows.forgetTombstones(103, ["b"]);
  assert.equal(left(), "abdef", "a has a row, b a folder");
  rows.forgetTombstones(0, [], 3);
  assert.equal(left(), "adef");
  rows.remove("a");
  rows.forgetTombstones(0, [], 3);
  assert.equal(left(), "def");
  rows.forgetTombstones(1_000, []);
  assert.equal(left(), "f", "the database is known to have had capsules");
});
