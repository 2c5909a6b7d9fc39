import assert from "node:assert/strict";
import { test } from "node:test";
import { CapsuleError } from "../../wire/errors.ts";
import { PublicWakes } from "./public-wakes.ts";

test("a capsule has so many wakes within any hour, and others have their own", () => {
  let now = 0;
  const wakes = new PublicWakes(3, () => now);
  const refusal = (id: string) => {
    try {
      wakes.take(id);
      return undefined;
    } catch (error) {
      return error instanceof CapsuleError ? [error.code, error.retryAfterSec] : error;
    }
  };
  for (now of [0, 1_000_000, 2_000_000]) assert.equal(refusal("a"), undefined);
  assert.deepEqual(refusal("a"), ["quota_exceeded", 1_600]);
  assert.equal(refusal("b"), undefined);
  now = 3_600_000;
  assert.equal(refusal("a"), undefined);
  assert.deepEqual(refusal("a"), ["quota_exceeded", 1_000]);
  now = 3_600_000 * 3;
  assert.equal(refusal("c"), undefined);
  assert.equal(wakes.size, 1);
  assert.throws(() => new PublicWakes(0, () => now).take("a"), { code: "quota_exceeded", retryAfterSec: 3_600 });
});
