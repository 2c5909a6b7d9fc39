import assert from "node:assert/strict";
import { test } from "node:test";
import { allSettledOrThrow } from "./all-settled.ts";

test("rejects when all have settled, with the first failure in order", async () => {
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

test("resolves with the results in order", async () => {
  const [one, two] = await allSettledOrThrow([Promise.resolve(1), "two"]);
  assert.deepEqual([one, two], [1, "two"]);
});
