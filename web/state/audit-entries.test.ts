import assert from "node:assert/strict";
import { test } from "node:test";
import { type Entry, filtered, folded, joined, outcomeOf } from "./audit-entries.ts";

const entry = (id: number, more: Partial<Entry> = {}): Entry => ({
  id: String(id),
  at: new Date(Date.UTC(2026, 0, 1) + id * 1_000).toISOString(),
  key_id: "key-1",
  key_name: "first",
  address: "127.0.0.1",
  action: "exec",
  capsule_id: "cl-a",
  subject: "ls",
  status: 101,
  exit_code: null,
  ...more,
});
const ticket = (id: number, path: string, more: Partial<Entry> = {}) =>
  entry(id, { action: "ticket.create", capsule_id: null, subject: `/v1/capsules/${path}`, status: 201, ...more });
const ids = (entries: readonly Entry[]) => entries.map(({ id }) => id).join(" ");
const seen = (entries: readonly Entry[]) =>
  folded(entries).map((each) => `${each.entry.id}${each.hasTicket ? "+" : ""}`);

test("a ticket is folded into what it opened: same key, capsule and kind, within its life", () => {
  assert.deepEqual(seen([entry(2), ticket(1, "cl-a/exec/stream")]), ["2+"]);
  assert.deepEqual(seen([entry(2), ticket(1, "cl-b/exec/stream")]), ["2", "1"]);
  assert.deepEqual(seen([entry(2), ticket(1, "cl-a/pty")]), ["2", "1"]);
  assert.deepEqual(seen([entry(2), ticket(1, "cl-a/exec/stream", { key_id: "key-2" })]), ["2", "1"]);
  assert.deepEqual(seen([entry(2), ticket(1, "cl-a/exec/stream", { status: 429 })]), ["2", "1"]);
  assert.deepEqual(seen([entry(40), ticket(1, "cl-a/exec/stream")]), ["40", "1"]);
  assert.deepEqual(seen([ticket(2, "cl-a/exec/stream"), entry(1)]), ["2", "1"]);
  const attach = entry(3, { action: "process.attach", subject: "tag" });
  assert.deepEqual(seen([attach, entry(2), ticket(1, "cl-a/processes/tag/stream")]), ["3+", "2"]);
});

test("as many tickets are folded as were used", () => {
  const path = "cl-a/exec/stream";
  assert.deepEqual(seen([entry(5), entry(4), ticket(3, path), ticket(2, path), ticket(1, path)]), ["5+", "4+", "1"]);
});

test("newer entries join the known ones, and beyond a gap replace them", () => {
  const known = [entry(3), entry(2)];
  const join = (...newest: Entry[]) => joined(newest, known);
  assert.equal(ids(join(entry(5), entry(4), entry(3)).entries), "5 4 3 2");
  assert.equal(ids(join(entry(3), entry(2)).entries), "3 2");
  assert.deepEqual([ids(join(entry(9), entry(8)).entries), join(entry(9), entry(8)).hasGap], ["9 8", true]);
  assert.equal(ids(joined([entry(1)], []).entries), "1");
  assert.deepEqual(
    join(entry(4), entry(3, { exit_code: 7 })).entries.map(({ exit_code }) => exit_code),
    [null, 7, null],
  );
});

test("entries are filtered by action or area, key and outcome", () => {
  const shown = folded([
    entry(4, { action: "file.read", status: 200 }),
    entry(3, { action: "file.write", status: 404, key_name: "", key_id: "key-2" }),
    entry(2, { status: 499 }),
    entry(1, { status: 502 }),
  ]);
  const found = (filter: object) =>
    filtered(shown, { action: "", key: "", outcome: "", ...filter }).map((each) => each.entry.id);
  assert.deepEqual(found({}), ["4", "3", "2", "1"]);
  assert.deepEqual(found({ action: "file" }), ["4", "3"]);
  assert.deepEqual(found({ action: "file.write" }), ["3"]);
  assert.deepEqual(found({ key: "key-2" }), ["3"]);
  assert.deepEqual(found({ outcome: "aborted" }), ["2"]);
  const outcomes = [101, 200, 499, 404, 502].map((status) => outcomeOf({ status, exit_code: null }));
  assert.deepEqual(outcomes, ["started", "done", "aborted", "refused", "failed"]);
  assert.equal(outcomeOf({ status: 101, exit_code: 7 }), "done");
});
