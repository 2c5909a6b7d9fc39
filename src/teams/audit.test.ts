import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
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

function fresh({ entriesMax = 1_000, clock = new FakeClock() } = {}) {
  const database = openDatabase(":memory:");
  const rows = new AuditRows(database);
  const lost: number[] = [];
  const onLoss = (entries: number) => lost.push(entries);
  const audit = new Audit({ rows, clock, entriesMax, keepMs: 90 * day, onLoss });
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
    "UPDATE audit SET rowid = rowid + 10",
    "UPDATE audit SET exit_code = 1, subject = 'd'",
    "UPDATE audit SET exit_code = 1 WHERE subject = 'c'; UPDATE audit SET exit_code = 0 WHERE subject = 'c'",
    "DELETE FROM audit",
    "DELETE FROM audit WHERE subject = 'b'",
    "REPLACE INTO audit_horizons (team_id, through) VALUES ('blue', 2); UPDATE audit_horizons SET through = 1",
    "DELETE FROM audit_horizons",
    "UPDATE audit_horizons SET team_id = 'red'",
  ];
  for (const statement of statements) assert.throws(() => database.exec(statement), /append-only/, statement);
  assert.deepEqual(subjects(), ["c", "b", "a"]);
});

test("an entry gets the exit code of its command once, also after it was written, and a removed one gets none", () => {
  const { audit, rows } = fresh({ entriesMax: 0 });
  const codes = () => audit.list("blue", { limit: 9 }).entries.map(({ subject, exitCode }) => [subject, exitCode]);
  audit.record(entry({ subject: "answered", exitCode: 0 }));
  const addToFirst = audit.recordCommand(entry({ subject: "first" }));
  const addToSecond = audit.recordCommand(entry({ subject: "second" }));
  audit.recordCommand(entry({ subject: "third" }));
  addToFirst(3);
  addToFirst(4);
  assert.deepEqual(codes(), [
    ["third", null],
    ["second", null],
    ["first", 3],
    ["answered", 0],
  ]);
  addToSecond(137);
  addToSecond(0);
  assert.equal(rows.list("blue", { limit: 9 })[1]?.exitCode, null, "it waits for the next flush");
  audit.flush();
  assert.equal(rows.list("blue", { limit: 9 })[1]?.exitCode, 137);
  const late = audit.recordCommand(entry({ subject: "late" }));
  for (let i = 0; i < 2_000; i++) audit.record(entry());
  audit.flush();
  assert.ok(!rows.list("blue", { limit: 9_999 }).some(({ subject }) => subject === "late"));
  late(1);
  audit.flush();
});

test("the statements that change or remove entries are that of exit codes and that of retention", () => {
  const folder = join(import.meta.dirname, "../db");
  const source = readdirSync(folder)
    .filter((name) => name !== "migrations.ts")
    .map((name) => readFileSync(join(folder, name), "utf8"))
    .join("");
  const statements = source.match(/\b(DELETE FROM|UPDATE|REPLACE INTO) audit\b( SET \w+)?/g);
  assert.deepEqual(statements, ["UPDATE audit SET exit_code", "DELETE FROM audit"]);
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

/** The actions of the team's entries, the oldest first, and the number of each run of them. */
function runs(audit: Audit): string[] {
  const { entries } = audit.list("blue", { limit: 100_000 });
  const found: { action: string; count: number }[] = [];
  for (const { action } of entries.reverse()) {
    const last = found.at(-1);
    if (last?.action === action) last.count++;
    else found.push({ action, count: 1 });
  }
  return found.map(({ action, count }) => `${count} ${action}`);
}

/** Records entries in batches, as the service does. */
function flood(audit: Audit, count: number, more: Partial<AuditEntry>): void {
  for (let i = 0; i < count; i++) audit.record(entry({ subject: String(i), ...more }));
  for (let i = 0; i < count / 1_000 + 5; i++) {
    audit.record(entry(more));
    audit.flush();
  }
}

test("entries of keys, sign-ins, lifecycle and templates are displaced neither by others nor by one another", () => {
  const { audit } = fresh({ entriesMax: 10_000 });
  const few = ["key.create", "sign-in", "capsule.create", "capsule.end", "template.create"] as const;
  for (const action of few) audit.record(entry({ action }));
  audit.record(entry({ action: "capsule.end", keyId: "", status: 500 }));
  audit.record(entry({ action: "capsule.destroy", status: 499 }));
  const kept = [...few.map((action) => `1 ${action}`), "1 capsule.end", "1 capsule.destroy"];
  kept.splice(3, 3, "1 capsule.end", "1 template.create", "1 capsule.end");
  flood(audit, 30_000, { action: "file.read" });
  flood(audit, 30_000, { action: "key.revoke", status: 404 });
  const displaced = () => kept.filter((run, index) => runs(audit)[index] !== run);
  assert.deepEqual(displaced(), []);
  flood(audit, 30_000, { action: "capsule.pause" });
  assert.deepEqual(displaced().slice(0, 2), ["1 capsule.create", "1 capsule.end"], "the oldest of its own kind");
  assert.deepEqual(runs(audit).slice(0, 3), ["1 key.create", "1 sign-in", "1 template.create"]);
});

test("room that the other kinds do not use belongs to every kind; none takes another's share", () => {
  const { audit } = fresh({ entriesMax: 10_000 });
  flood(audit, 30_000, { action: "exec" });
  const count = (wanted: string) =>
    audit.list("blue", { limit: 100_000 }).entries.filter(({ action }) => action === wanted).length;
  assert.ok(count("exec") >= 10_000);
  flood(audit, 30_000, { action: "key.create" });
  flood(audit, 30_000, { action: "capsule.create" });
  flood(audit, 30_000, { action: "exec" });
  flood(audit, 30_000, { action: "template.create" });
  const counts = ["exec", "capsule.create", "key.create", "template.create"].map(count);
  const least = [5_000, 2_500, 1_250, 1_250];
  assert.ok(
    counts.every((found, index) => found >= (least[index] ?? 0)),
    String(counts),
  );
  assert.ok(counts.reduce((sum, found) => sum + found) <= 11_000, String(counts));
});

test("the entries of an earlier start are bounded too", () => {
  const { audit, rows } = fresh({ entriesMax: 100_000 });
  audit.record(entry({ action: "key.create" }));
  flood(audit, 20_000, { action: "exec" });
  const next = new Audit({ rows, clock: new FakeClock(), entriesMax: 2_000, keepMs: day, onLoss: () => {} });
  for (let i = 0; i < 20; i++) {
    next.record(entry());
    next.flush();
  }
  const [first, second, ...more] = runs(next);
  assert.deepEqual([first, more], ["1 key.create", []]);
  assert.ok(Number.parseInt(String(second), 10) <= 3_000, second);
});

test("failed requests leave one entry a minute for each capsule too", () => {
  const { audit, subjects } = fresh();
  for (let i = 0; i < 10; i++) {
    for (const capsuleId of ["cl-1", "cl-2"])
      audit.record(entry({ capsuleId, subject: capsuleId, status: 502 }), "failed");
  }
  assert.deepEqual(subjects(), ["cl-2", "cl-1"]);
});

test("refusals of a key leave one entry a minute for each action and status, with their number", () => {
  const clock = new FakeClock();
  const { audit, subjects } = fresh({ clock });
  const refuse = (subject: string, status = 404) => audit.record(entry({ subject, status }), "refused");
  for (let i = 0; i < 500; i++) refuse(`/${i}`);
  refuse("/secret", 403);
  assert.deepEqual(subjects(), ["/secret", "/0"]);
  clock.advance(60_000);
  audit.flush();
  const counted = "499 more such requests within a minute, of which this is the last";
  assert.deepEqual(subjects(), [counted, "/secret", "/0"]);
  refuse("/1");
  audit.close();
  assert.equal(subjects()[0], counted.replace("499", "1"));
});

test("old entries are removed, also those of an earlier start", () => {
  const clock = new FakeClock();
  const { audit, rows, subjects } = fresh({ clock });
  audit.record(entry({ subject: "old" }));
  clock.advance(10 * day);
  audit.record(entry({ subject: "young" }));
  clock.advance(79 * day);
  audit.record(entry({ subject: "new" }));
  audit.removeExpired();
  assert.deepEqual(subjects(), ["new", "young", "old"]);
  clock.advance(1.5 * day);
  new Audit({ rows, clock, entriesMax: 1_000, keepMs: 90 * day, onLoss: () => {} }).removeExpired();
  assert.deepEqual(
    subjects(),
    ["new", "young", "old"],
    "a day ago the old one was 89.5 days old, as far as the rows say",
  );
  clock.advance(day);
  audit.removeExpired();
  audit.removeExpired();
  clock.advance(day);
  audit.removeExpired();
  assert.deepEqual(subjects(), ["new", "young"]);
});

test("a clock that was set 90 days ahead removes nothing for a day, whether the service is started anew or not", () => {
  const clock = new FakeClock();
  const { audit, rows, subjects } = fresh({ clock });
  for (const subject of ["a", "b"]) audit.record(entry({ subject }));
  clock.advance(3 * day);
  audit.removeExpired();
  clock.step(100 * day);
  audit.record(entry({ subject: "ahead" }));
  const restarted = () => new Audit({ rows, clock, entriesMax: 1_000, keepMs: 90 * day, onLoss: () => {} });
  for (let hours = 0; hours < 23; hours++) {
    clock.advance(day / 24);
    audit.removeExpired();
    restarted().removeExpired();
  }
  assert.deepEqual(subjects(), ["ahead", "b", "a"]);
  clock.advance(day / 12);
  restarted().removeExpired();
  assert.deepEqual(subjects(), ["ahead"]);
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
