import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { RateLimiter } from "./rate-limiter.ts";

test("a burst passes, then the rate, and the wait that is told is enough", () => {
  let nowMs = 0;
  const buckets = new RateLimiter(2, 5, () => nowMs);
  assert.deepEqual(
    Array.from({ length: 6 }, () => buckets.take("a")),
    [0, 0, 0, 0, 0, 1],
  );
  assert.equal(buckets.take("b"), 0, "each has a bucket of its own");
  nowMs += 499;
  assert.equal(buckets.take("a"), 1);
  nowMs += 1;
  assert.equal(buckets.take("a"), 0);
  assert.equal(buckets.take("a"), 1);
  nowMs += 3_600_000;
  assert.deepEqual(
    Array.from({ length: 6 }, () => buckets.take("a")),
    [0, 0, 0, 0, 0, 1],
  );
});

test("in no stretch of time do more pass than the burst and the rate allow", () => {
  const steps = fc.array(fc.integer({ min: 0, max: 700 }), { minLength: 1, maxLength: 200 });
  fc.assert(
    fc.property(steps, fc.integer({ min: 1, max: 50 }), fc.integer({ min: 1, max: 20 }), (waits, rate, burst) => {
      let nowMs = 0;
      const buckets = new RateLimiter(rate, burst, () => nowMs);
      const passed: number[] = [];
      for (const waitMs of waits) {
        nowMs += waitMs;
        if (buckets.take("a") === 0) passed.push(nowMs);
      }
      passed.forEach((from, i) => {
        for (const to of passed.slice(i)) {
          const count = passed.filter((at) => at >= from && at <= to).length;
          assert.ok(count <= burst + ((to - from) / 1_000) * rate + 1e-6, `${count} in ${to - from} ms`);
        }
      });
    }),
    { numRuns: 50 },
  );
});

test("names without number take no memory without bound", () => {
  const buckets = new RateLimiter(1, 1, () => 0);
  buckets.take("steady");
  for (let i = 0; i < 110_000; i++) {
    buckets.take(String(i));
    if (i % 20_000 === 0) assert.equal(buckets.take("steady"), 1, `who keeps coming is remembered, also after ${i}`);
  }
  assert.ok(buckets.size <= 50_000, `${buckets.size} are kept`);
  for (let i = 109_999; i > 85_000; i--) assert.equal(buckets.take(String(i)), 1, `the latest are remembered, ${i}`);
});
