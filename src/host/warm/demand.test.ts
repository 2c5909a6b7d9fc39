/** How many of a kind are kept ready, by when they were asked for. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { DemandEstimator } from "./demand.ts";

function asked(...atMs: number[]): DemandEstimator {
  const demand = new DemandEstimator();
  for (const each of atMs) demand.record(each);
  return demand;
}

test("one asking is no habit, two are", () => {
  assert.equal(asked().targetSize(0), 0);
  assert.equal(asked(0).targetSize(0), 0);
  assert.equal(asked(0, 60_000).targetSize(60_000), 1);
});

test("as many as came within one refill, at the busiest moment", () => {
  assert.equal(asked(0, 1_000, 2_000, 100_000).targetSize(100_000), 3);
  assert.equal(asked(0, 4_000, 8_000, 12_000).targetSize(12_000), 2);
});

test("a busy moment is forgotten after ten minutes", () => {
  const demand = asked(0, 0, 0, 300_000, 301_000);
  assert.equal(demand.targetSize(599_000), 3);
  assert.equal(demand.targetSize(601_000), 2);
  assert.equal(demand.targetSize(1_000_000), 0);
});

test("what is remembered is bounded", () => {
  const demand = asked(...Array.from({ length: 1_000 }, (_, at) => at));
  assert.equal(demand.targetSize(1_000), 64);
  assert.equal(demand.lastMs, 999);
});
