import assert from "node:assert/strict";
import { test } from "node:test";
import { Counts } from "./counts.ts";

test("a count that is back at 0 is forgotten", () => {
  const counts = new Counts();
  counts.add("a");
  counts.add("a");
  counts.add("b");
  counts.set("c", 7);
  assert.deepEqual([counts.of("a"), counts.of("none"), counts.sum, counts.size], [2, 0, 10, 3]);
  counts.subtract("a");
  counts.subtract("b");
  counts.set("c", 0);
  assert.deepEqual([counts.of("a"), counts.of("b"), counts.sum, counts.size], [1, 0, 1, 1]);
  counts.add("d", 5);
  counts.subtract("d", 2);
  assert.deepEqual([counts.of("d"), [...counts.keys()]], [3, ["a", "d"]]);
});
