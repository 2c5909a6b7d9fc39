import assert from "node:assert/strict";
import { test } from "node:test";
import { publicDocument, publicResult, type Run, successOf } from "./public-format.ts";

const burst: Run = {
  mode: "burst",
  wallMs: 3_000,
  trials: [
    { launchedAtMs: 0, ttiMs: 1_000 },
    { launchedAtMs: 0, ttiMs: undefined, error: "it broke" },
    { launchedAtMs: 0, ttiMs: 3_000 },
    { launchedAtMs: 0, ttiMs: 2_000 },
  ],
};

test("a burst with a failure", () => {
  assert.deepEqual(publicResult(burst), {
    provider: "capsule",
    mode: "burst",
    iterations: [{ ttiMs: 1_000 }, { ttiMs: 0, error: "it broke" }, { ttiMs: 3_000 }, { ttiMs: 2_000 }],
    summary: { ttiMs: { median: 2_000, p95: 3_000, p99: 3_000, mean: 2_000 } },
    successRate: 0.75,
    compositeScore: 0.75 * (0.6 * 80 + 0.25 * 70 + 0.15 * 70),
    concurrency: 4,
    wallClockMs: 3_000,
    timeToFirstReadyMs: 1_000,
  });
  assert.equal(successOf(burst), 75);
});

test("a staggered run tells its ramp", () => {
  const trials = [
    { launchedAtMs: 0, ttiMs: 500 },
    { launchedAtMs: 200, ttiMs: 100 },
  ];
  const result = publicResult({ mode: "staggered", staggerMs: 200, wallMs: 500, trials }) as Record<string, unknown>;
  assert.equal(result.staggerDelayMs, 200);
  assert.equal(result.timeToFirstReadyMs, 300);
  assert.deepEqual(result.rampProfile, [
    { launchedAt: 0, readyAt: 500, ttiMs: 500 },
    { launchedAt: 200, readyAt: 300, ttiMs: 100 },
  ]);
});

test("a run in which nothing succeeded scores nothing", () => {
  const trials = [{ launchedAtMs: 0, ttiMs: undefined, error: "no" }];
  const result = publicResult({ mode: "sequential", wallMs: 1, trials }) as Record<string, unknown>;
  assert.equal(result.successRate, 0);
  assert.equal(result.compositeScore, 0);
});

test("the slowest and the fastest twentieth are left out of the percentiles", () => {
  const trials = Array.from({ length: 20 }, (_, index) => ({ launchedAtMs: 0, ttiMs: index === 19 ? 9_000 : 100 }));
  const { summary } = publicResult({ mode: "sequential", wallMs: 1, trials }) as {
    summary: { ttiMs: { p99: number } };
  };
  assert.equal(summary.ttiMs.p99, 100);
});

test("the document says where it was measured", () => {
  const document = publicDocument([burst], "2026-01-01T00:00:00.000Z") as Record<string, unknown>;
  assert.equal(document.timestamp, "2026-01-01T00:00:00.000Z");
  assert.deepEqual(document.environment, { node: process.version, platform: process.platform, arch: process.arch });
  assert.deepEqual(document.config, { iterations: 4, timeoutMs: 120_000 });
});
