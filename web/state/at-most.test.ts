import assert from "node:assert/strict";
import { test } from "node:test";
import { forEachAtMost } from "./at-most.ts";

test("every item is worked on once, and never more than the limit at the same time", async () => {
  const items = Array.from({ length: 20 }, (_, index) => index);
  const begun: number[] = [];
  let running = 0;
  let most = 0;
  await forEachAtMost(3, items, async (item) => {
    begun.push(item);
    most = Math.max(most, ++running);
    for (let turn = 0; turn < item % 4; turn++) await Promise.resolve();
    running--;
  });
  assert.deepEqual(begun, items);
  assert.equal(most, 3);
  assert.equal(running, 0);
});

test("without items nothing happens", async () => {
  await forEachAtMost(3, [], () => assert.fail("there is no item"));
});
