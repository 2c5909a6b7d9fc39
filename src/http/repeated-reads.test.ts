import assert from "node:assert/strict";
import { test } from "node:test";
import { RepeatedReads } from "./repeated-reads.ts";

test("a read is repeated within a minute of its last entry", () => {
  let now = 5;
  const reads = new RepeatedReads(() => now);
  assert.equal(reads.isRepeated(["key", "/a"]), false);
  for (now of [6, 30_000, 60_004]) assert.equal(reads.isRepeated(["key", "/a"]), true, `${now}`);
  assert.equal(reads.isRepeated(["key", "/b"]), false);
  assert.equal(reads.isRepeated(["other key", "/a"]), false);
  now = 60_005;
  assert.equal(reads.isRepeated(["key", "/a"]), false);
  now = 60_006;
  assert.equal(reads.isRepeated(["key", "/a"]), true);
});

test("10,000 reads are remembered; the oldest is forgotten first", () => {
  const reads = new RepeatedReads(() => 0);
  for (let i = 0; i < 10_000; i++) assert.equal(reads.isRepeated([i]), false);
  assert.equal(reads.isRepeated([0]), true);
  assert.equal(reads.isRepeated(["one more"]), false);
  assert.equal(reads.isRepeated([1]), true);
  assert.equal(reads.isRepeated([0]), false);
});
