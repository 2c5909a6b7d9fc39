import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { repeat, summarize, timed } from "./statistics.ts";

test("percentiles of a hundred samples", () => {
  const samples = Array.from({ length: 100 }, (_, index) => 100 - index);
  const { p50, p95, p99, mean, min, max } = summarize(samples);
  assert.deepEqual({ p50, p95, p99, mean, min, max }, { p50: 51, p95: 96, p99: 100, mean: 50.5, min: 1, max: 100 });
});

test("a percentile is a sample, and they are in order", () => {
  fc.assert(
    fc.property(fc.array(fc.double({ noNaN: true }), { minLength: 1 }), (samples) => {
      const { p50, p95, p99, min, max } = summarize(samples);
      for (const each of [p50, p95, p99]) assert.ok(samples.includes(each));
      assert.ok(min <= p50 && p50 <= p95 && p95 <= p99 && p99 <= max);
    }),
  );
});

test("nothing measured is an error, not a zero", () => {
  assert.throws(() => summarize([]), /nothing was measured/);
});

test("a measurement that fails is no sample", async () => {
  await assert.rejects(
    timed(() => Promise.reject(new Error("broken"))),
    /broken/,
  );
  assert.deepEqual(await repeat(3, async (round) => round * 2), [0, 2, 4]);
});
