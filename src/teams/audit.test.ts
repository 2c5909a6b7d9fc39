import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { AuditRows } from "../db/audit-rows.ts";
import { openDatabase } from "../db/database.ts";
import { Audit, type AuditEntry } from "./audit.ts";

const day = 86_400_000;

function entry(more: Partial<AuditEntry> = {}): AuditEntry {
  return {
    teamId: "blue",
    keyId: "key-1",
    keyName: "laptop",
    address: "127.0.0.1",
    action: "exec",
    capsuleId: null,
    subject: null,
    status: 200,
    ...more,
  };
}

function fresh({ entriesMax = 1_000, now = (): number => 0 } = {}) {
  const database = openDatabase(":memory:");
  const rows = new AuditRows(database);
  const lost: number[] = [];
  const audit = new Audit({ rows, now, entriesMax, keepMs: 90 * day, onLoss: (entries) => lost.push(entries) });
  const subjects = (teamId = "blue") => audit.list(teamId, { limit: 100_000 }).entries.map((each) => each.subject);
  return { database, rows, audit, lost, subjects };
}

test("a team reads its own entries, newest first, in pages", () => {
  const { audit } = fresh();
  for (const subject of ["a", "b", "c", "d", "e"]) {
    audit.record(entry({ subject, capsuleId: subject < "c" ? "cl-1" : "cl-2" }));
    audit.record(entry({ subject, teamId: "red" }));
  }
  const pages: (string | null)[][] = [];
  for (let before: number | null | undefined; before !== null; ) {
    const page = audit.list("blue", { limit: 2, before });
    pages.push(page.entries.map((each) => each.subject));
    before = page.next;
  }
  assert.deepEqual(pages, [["e", "d"], ["c", "b"], ["a"]]);
  const { entries, next } = audit.list("blue", { limit: 2, capsuleId: "cl-1" });
  assert.deepEqual([entries.map((each) => each.subject), next], [["b", "a"], null]);
  assert.deepEqual(audit.list("green", { limit: 2 }), { entries: [], next: null });
});

test("flushed entries are in the database; later ones follow with the next flush", () => {
  const { audit, rows } = fresh();
  audit.record(entry());
  assert.equal(rows.list("blue", { limit: 9 }).length, 0);
  audit.flush();
  assert.equal(rows.list("blue", { limit: 9 }).length, 1);
  for (let i = 0; i < 1_000; i++) audit.record(entry());
  assert.equal(rows.list("blue", { limit: 9_999 }).length, 1_001, "a thousand do not wait for the clock");
});

test("a row can be neither changed nor removed by any SQL", () => {
  const { audit, database, subjects } = fresh();
  for (const subject of ["a", "b", "c"]) audit.record(entry({ subject }));
  audit.flush();
  const statements = [
    "UPDATE audit SET status = 500",
    "UPDATE audit SET id = id + 10",
    "DELETE FROM audit",
    "DELETE FROM audit WHERE subject = 'b'",
    "REPLACE INTO audit_horizons (team_id, through) VALUES ('blue', 2); UPDATE audit_horizons SET through = 1",
    "DELETE FROM audit_horizons",
    "UPDATE audit_horizons SET team_id = 'red'",
  ];
  for (const statement of statements) assert.throws(() => database.exec(statement), /append-only/, statement);
  assert.deepEqual(subjects(), ["c", "b", "a"]);
});

test("the one statement that removes entries is that of retention", () => {
  const folder = join(import.meta.dirname, "../db");
  const source = readdirSync(folder)
    .filter((name) => name !== "migrations.ts")
    .map((name) => readFileSync(join(folder, name), "utf8"))
    .join("");
  assert.equal(source.match(/\b(DELETE FROM|UPDATE|REPLACE INTO) audit\b/g)?.join(), "DELETE FROM audit");
});

test("beyond its maximum a team's oldest entries are removed, and no other team's", () => {
  const { audit, subjects } = fresh({ entriesMax: 100 });
  audit.record(entry({ teamId: "red", subject: "kept" }));
  for (let i = 1; i <= 1_100; i++) audit.record(entry({ subject: String(i) }));
  audit.flush();
  assert.equal(subjects().length, 1_100, "within the slack");
  audit.record(entry({ subject: "1101" }));
  audit.flush();
  assert.equal(subjects().length, 100);
  assert.deepEqual([subjects()[0], subjects().at(-1)], ["1101", "1002"]);
  assert.deepEqual(subjects("red"), ["kept"]);
});

test("old entries are removed, also those of an earlier start", () => {
  let now = 0;
  const { audit, rows, subjects } = fresh({ now: () => now });
  audit.record(entry({ subject: "old" }));
  now = 10 * day;
  audit.record(entry({ subject: "young" }));
  audit.removeExpired();
  assert.deepEqual(subjects(), ["young", "old"]);
  now = 90 * day + 1;
  new Audit({ rows, now: () => now, entriesMax: 1_000, keepMs: 90 * day, onLoss: () => {} }).removeExpired();
  assert.deepEqual(subjects(), ["young"]);
});

test("long texts are cut", () => {
  const { audit, subjects } = fresh();
  audit.record(entry({ subject: "x".repeat(100_000), capsuleId: "y".repeat(100_000), address: "z".repeat(100) }));
  assert.equal(subjects()[0]?.length, 512);
  assert.equal(audit.list("blue", { limit: 1 }).entries[0]?.capsuleId?.length, 64);
});

test("while the database cannot be written, the newest entries stay buffered, and record does not throw", () => {
  const { audit, rows, lost, subjects } = fresh({ entriesMax: 100_000 });
  const append = rows.append;
  rows.append = () => {
    throw new Error("disk full");
  };
  for (let i = 1; i <= 12_000; i++) audit.record(entry({ subject: String(i) }));
  assert.throws(() => audit.flush(), /disk full/);
  assert.deepEqual(lost, [1_000, 1_000]);
  rows.append = append;
  assert.equal(subjects().length, 10_000);
  assert.equal(subjects().at(-1), "2001");
});
