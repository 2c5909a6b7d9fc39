import assert from "node:assert/strict";
import { test } from "node:test";
import { allSettledOrThrow } from "./all-settled.ts";

test("a failure is told when all have ended, and of two the first in order", async () => {
  const slow = Promise.withResolvers<void>();
  let isTold = false;
  const told = allSettledOrThrow([slow.promise, Promise.reject(new Error("early")), 3]).finally(() => {
    isTold = true;
  });
  await new Promise(setImmediate);
  assert.equal(isTold, false);
  slow.reject(new Error("first"));
  await assert.rejects(told, /first/);
});

test("results come in the order of the work", async () => {
  const [one, two] = await allSettledOrThrow([Promise.resolve(1), "two"]);
  assert.deepEqual([one, two], [1, "two"]);
});
