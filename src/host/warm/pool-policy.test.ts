/** How many items of a key are kept ready, and when one may be made. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { DemandEstimator, type RefillState, refillAtMs } from "./pool-policy.ts";

function claimed(...atMs: number[]): DemandEstimator {
  const demand = new DemandEstimator();
  for (const each of atMs) demand.record(each);
  return demand;
}

test("one claim is no demand, two are", () => {
  assert.equal(claimed().targetSize(0), 0);
  assert.equal(claimed(0).targetSize(0), 0);
  assert.equal(claimed(0, 60_000).targetSize(60_000), 1);
});

test("the target is the largest number of claims within five seconds", () => {
  assert.equal(claimed(0, 1_000, 2_000, 100_000).targetSize(100_000), 3);
  assert.equal(claimed(0, 4_000, 8_000, 12_000).targetSize(12_000), 2);
});

test("claims are forgotten after ten minutes", () => {
  const demand = claimed(0, 0, 0, 300_000, 301_000);
  assert.equal(demand.targetSize(599_000), 3);
  assert.equal(demand.targetSize(601_000), 2);
  assert.equal(demand.targetSize(1_000_000), 0);
});

test("the number of remembered claims is bounded", () => {
  const demand = claimed(...Array.from({ length: 1_000 }, (_, at) => at));
  assert.equal(demand.targetSize(1_000), 64);
  assert.equal(demand.lastMs, 999);
});

const idle: RefillState = {
  claimedMs: Number.NEGATIVE_INFINITY,
  making: { beganMs: 0, endedMs: 0 },
  failures: 0,
  failedMs: Number.NEGATIVE_INFINITY,
  isEmpty: false,
};

test("an item may be made at once, but not in the 100 ms after a claim", () => {
  assert.equal(refillAtMs(idle), 0);
  assert.equal(refillAtMs({ ...idle, claimedMs: 5_000 }), 5_100);
});

test("items are made at most half of the time, unless the key has run out", () => {
  const making = { beganMs: 1_000, endedMs: 4_000 };
  assert.equal(refillAtMs({ ...idle, making }), 7_000);
  assert.equal(refillAtMs({ ...idle, making, isEmpty: true }), 4_000);
});

test("the pause after failures doubles up to five minutes", () => {
  const pausesMs = [1, 2, 3, 9, 100].map((failures) => refillAtMs({ ...idle, failures, failedMs: 10_000 }) - 10_000);
  assert.deepEqual(pausesMs, [1_000, 2_000, 4_000, 256_000, 300_000]);
});
