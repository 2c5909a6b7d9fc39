import assert from "node:assert/strict";
import { test } from "node:test";
import { type JoinableEntry, JoinedEntries } from "./joined-entries.ts";

function entry(subject: string): JoinableEntry {
  const by = { teamId: "blue", keyId: "key-1", keyName: "laptop", address: "127.0.0.1" };
  return { ...by, action: "file.read", capsuleId: null, subject, status: 404 };
}

function joined({ isCounted = false } = {}) {
  const clock = { now: 5 };
  const entries = new JoinedEntries({ isCounted, ticks: () => clock.now });
  const subjects = (rows: readonly JoinableEntry[]) => rows.map(({ subject }) => subject);
  return {
    clock,
    add: (parts: unknown[], subject = "a") => subjects(entries.add(parts, entry(subject))),
    due: () => subjects(entries.due()),
    drain: () => subjects(entries.drain()),
  };
}

test("within a minute of its first one an entry leaves no other", () => {
  const { clock, add, due } = joined();
  assert.deepEqual(add(["key", "/a"]), ["a"]);
  for (clock.now of [6, 30_000, 60_004]) assert.deepEqual(add(["key", "/a"]), [], `${clock.now}`);
  assert.deepEqual(add(["key", "/b"], "b"), ["b"]);
  assert.deepEqual(add(["other key", "/a"], "c"), ["c"]);
  clock.now = 60_005;
  assert.deepEqual(add(["key", "/a"]), ["a"]);
  clock.now = 60_006;
  assert.deepEqual(add(["key", "/a"]), []);
  clock.now = 500_000;
  assert.deepEqual(due(), []);
});

test("where they are counted, one entry a minute has their number", () => {
  const { clock, add, due, drain } = joined({ isCounted: true });
  const more = (count: number) => [`${count} more such requests within a minute, of which this is the last`];
  assert.deepEqual(add(["key"]), ["a"]);
  for (let i = 0; i < 3_378; i++) assert.deepEqual(add(["key"]), []);
  clock.now = 60_004;
  assert.deepEqual(due(), []);
  clock.now = 60_005;
  assert.deepEqual(due(), more(3_378));
  assert.deepEqual(add(["key"]), [], "it is counted for the next minute");
  assert.deepEqual(drain(), more(1));
  assert.deepEqual(add(["key"]), ["a"]);
  clock.now = 120_005;
  assert.deepEqual(due(), [], "nothing was joined to it");
  assert.deepEqual(add(["key"]), ["a"]);
});

test("10,000 minutes are under way; the oldest ends first, with its number", () => {
  const { add } = joined({ isCounted: true });
  for (let i = 0; i < 10_000; i++) assert.deepEqual(add([i]), ["a"]);
  assert.deepEqual(add([0]), []);
  assert.equal(add(["one more"]).length, 2);
  assert.deepEqual(add([1]), []);
  assert.deepEqual(add([0]).length, 2, "forgotten, and 1 makes way");
});
