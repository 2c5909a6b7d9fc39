import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { RateLimiter } from "./rate-limiter.ts";

test("a burst passes, then the rate, and the returned wait is sufficient", () => {
  let nowMs = 0;
  const limiter = new RateLimiter(2, 5, () => nowMs);
  assert.deepEqual(
    Array.from({ length: 6 }, () => limiter.take("a")),
    [0, 0, 0, 0, 0, 1],
  );
  assert.equal(limiter.take("b"), 0, "names do not share a bucket");
  nowMs += 499;
  assert.equal(limiter.take("a"), 1);
  nowMs += 1;
  assert.equal(limiter.take("a"), 0);
  assert.equal(limiter.take("a"), 1);
  nowMs += 3_600_000;
  assert.deepEqual(
    Array.from({ length: 6 }, () => limiter.take("a")),
    [0, 0, 0, 0, 0, 1],
  );
});

test("a charge beyond what is left makes the next request wait for all of it", () => {
  let nowMs = 0;
  const limiter = new RateLimiter(2, 5, () => nowMs);
  limiter.charge("a", 8);
  assert.equal(limiter.take("a"), 2, "3 tokens of debt and its own");
  nowMs += 1_999;
  assert.equal(limiter.take("a"), 1);
  nowMs += 1;
  assert.equal(limiter.take("a"), 0);
  assert.equal(limiter.take("b"), 0, "nobody else is charged");
  limiter.charge("b", 1e9);
  assert.equal(limiter.take("b"), 3, "a full bucket of debt and its own");
});

test("no interval admits more than the burst and the rate", () => {
  const steps = fc.array(fc.integer({ min: 0, max: 700 }), { minLength: 1, maxLength: 200 });
  fc.assert(
    fc.property(steps, fc.integer({ min: 1, max: 50 }), fc.integer({ min: 1, max: 20 }), (waits, rate, burst) => {
      let nowMs = 0;
      const limiter = new RateLimiter(rate, burst, () => nowMs);
      const passed: number[] = [];
      for (const waitMs of waits) {
        nowMs += waitMs;
        if (limiter.take("a") === 0) passed.push(nowMs);
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

test("an unbounded number of names takes bounded memory", () => {
  const limiter = new RateLimiter(1, 1, () => 0);
  limiter.take("steady");
  for (let i = 0; i < 110_000; i++) {
    limiter.take(String(i));
    if (i % 20_000 === 0) assert.equal(limiter.take("steady"), 1, `a name in use is kept, also after ${i} others`);
  }
  assert.ok(limiter.size <= 50_000, `${limiter.size} are kept`);
  for (let i = 109_999; i > 85_000; i--) assert.equal(limiter.take(String(i)), 1, `recent names are kept, ${i}`);
});
