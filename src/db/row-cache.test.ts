import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { type CapsuleRow, CapsuleRows } from "./capsule-rows.ts";
import { openDatabase, transact } from "./database.ts";
import { RowCache } from "./row-cache.ts";
import { TeamRows } from "./team-rows.ts";

const row: CapsuleRow = {
  id: "cl-one",
  teamId: "team",
  status: "paused",
  generation: 1,
  intent: null,
  template: "minimal",
  storage: "t1",
  blockedBy: null,
  vcpus: 1,
  memoryMb: 512,
  timeoutSec: 0,
  createdAt: 1,
  lastUpdated: 1,
  startedAt: null,
  lastActiveAt: null,
  errorReason: null,
};
const nextTurn = () => new Promise((done) => setImmediate(done));

/** Two connections to one file, as two programs have them, and a capsule. */
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

test("a row is read once as long as nobody writes it", (t) => {
  const { rows } = open(t);
  assert.equal(rows.get("cl-one"), rows.get("cl-one"));
  assert.deepEqual({ ...rows.get("cl-one") }, row);
});

test("a row that is not wanted is read each time, and not kept", (t) => {
  const { here } = open(t);
  const cache = new RowCache<{ id: string }>(here);
  let reads = 0;
  const get = (isWanted: boolean) =>
    cache.get(
      "key",
      () => ({ id: `read ${++reads}` }),
      () => isWanted,
    )?.id;
  assert.deepEqual([get(false), get(false), get(true), get(true)], ["read 1", "read 2", "read 3", "read 3"]);
  assert.deepEqual([get(false), get(true)], ["read 4", "read 3"]);
});

test("each way to write a capsule shows at once", (t) => {
  const { rows } = open(t);
  const seen = () => rows.get("cl-one");
  assert.equal(seen()?.generation, 1);
  rows.change("cl-one", 1, { status: "running" });
  assert.equal(seen()?.status, "running");
  rows.noteActive([["cl-one", 7]]);
  assert.equal(seen()?.lastActiveAt, 7);
  rows.block("t1", "running", "tools");
  assert.equal(seen()?.blockedBy, "tools");
  rows.beginDestroy("cl-one", 2, 0, () => {});
  assert.equal(seen()?.intent, "destroy");
  rows.remove("cl-one");
  assert.equal(seen(), undefined);
});

test("what another program writes shows in the next turn", async (t) => {
  const { rows, elsewhere } = open(t);
  assert.equal(rows.get("cl-one")?.status, "paused");
  new CapsuleRows(elsewhere).change("cl-one", 1, { status: "running" });
  await nextTurn();
  assert.equal(rows.get("cl-one")?.status, "running");
});

test("what a transaction takes back was never there", (t) => {
  const { rows, here } = open(t);
  assert.equal(rows.get("cl-one")?.generation, 1);
  const undone = () =>
    transact(here, () => {
      rows.change("cl-one", 1, { status: "running" });
      assert.equal(rows.get("cl-one")?.status, "running", "it sees its own writes");
      throw new Error("undone");
    });
  assert.throws(undone, /undone/);
  assert.equal(rows.get("cl-one")?.status, "paused");
});

test("nobody can change a row by its object", (t) => {
  const { rows } = open(t);
  const known = rows.get("cl-one")!;
  assert.throws(() => {
    known.status = "running";
  }, TypeError);
});

test("more rows than are kept", (t) => {
  const { rows } = open(t);
  const ids = Array.from({ length: 1_100 }, (_, index) => `cl-${index}`);
  for (const id of ids) rows.insert({ ...row, id });
  for (const id of [...ids, ...ids]) assert.equal(rows.get(id)?.id, id);
});

test("a key that is revoked, here or elsewhere, ends at once; one with an end ends at its time", async (t) => {
  const { here, elsewhere } = open(t);
  const teams = new TeamRows(here);
  const make = (id: string, expiresAt: number | null) => {
    const hash = Buffer.from(id).toString("hex");
    teams.insertKey({ id, teamId: "team", label: "", prefix: "", hash, createdAt: 1, expiresAt });
    return (now: number) => teams.liveKey(hash, now)?.id;
  };
  const [one, two, three] = [make("one", null), make("two", null), make("three", 100)];
  assert.deepEqual([one(1), two(1), three(99)], ["one", "two", "three"]);
  teams.revoke("one", 5);
  assert.equal(one(6), undefined);
  new TeamRows(elsewhere).revoke("two", 5);
  await nextTurn();
  assert.equal(two(6), undefined);
  assert.equal(three(100), undefined);
});
