/**
 * Time to interactive (from the create request to the result of a first command) in the JSON that the public sandbox
 * benchmarks exchange (github.com/computesdk/benchmarks, METHODOLOGY.md): sequential, staggered and burst runs.
 */
import { summarize } from "./statistics.ts";

export type Mode = "sequential" | "staggered" | "burst";

/** One capsule of a run. */
export interface Trial {
  /** From the run's start to its create request, milliseconds. */
  launchedAtMs: number;
  /** Undefined when it failed. */
  ttiMs: number | undefined;
  error?: string;
}

export interface Run {
  mode: Mode;
  trials: Trial[];
  /** From the first request to the last result, milliseconds. */
  wallMs: number;
  /** Between two creates of a staggered run, milliseconds. */
  staggerMs?: number;
}

export const timeoutMs = 120_000;

/** Scores of time are linear down to 0 at this many milliseconds. */
const ceilingMs = 10_000;
const weights = { p50: 0.6, p95: 0.25, p99: 0.15 };
/** Left out at both ends before the percentiles are taken. */
const trimmedShare = 0.05;

export function publicResult(run: Run): object {
  const { mode, trials, wallMs, staggerMs } = run;
  const times = timesOf(run);
  const successRate = trials.length === 0 ? 0 : times.length / trials.length;
  const summary = times.length === 0 ? undefined : summarize(trimmed(times));
  const { p50 = 0, p95 = 0, p99 = 0 } = summary ?? {};
  return {
    provider: "capsule",
    mode,
    iterations: trials.map(({ ttiMs, error }) => (ttiMs === undefined ? { ttiMs: 0, error } : { ttiMs })),
    summary: { ttiMs: { median: p50, p95, p99, mean: summary?.mean ?? 0 } },
    successRate,
    compositeScore: summary === undefined ? 0 : successRate * timingScore({ p50, p95, p99 }),
    ...(mode === "sequential"
      ? {}
      : { concurrency: trials.length, wallClockMs: wallMs, timeToFirstReadyMs: firstReadyMs(trials) }),
    ...(mode === "staggered" ? { staggerDelayMs: staggerMs, rampProfile: trials.flatMap(rampPoint) } : {}),
  };
}

export function publicDocument(runs: readonly Run[], timestamp: string): object {
  return {
    version: "1.1",
    timestamp,
    environment: { node: process.version, platform: process.platform, arch: process.arch },
    config: { iterations: Math.max(0, ...runs.map(({ trials }) => trials.length)), timeoutMs },
    results: runs.map(publicResult),
  };
}

/** The times of the trials that succeeded. */
export function timesOf({ trials }: Run): number[] {
  return trials.flatMap(({ ttiMs }) => (ttiMs === undefined ? [] : [ttiMs]));
}

/** In percent. */
export function successOf(run: Run): number {
  return (100 * timesOf(run).length) / run.trials.length;
}

function trimmed(times: readonly number[]): number[] {
  const cut = Math.floor(times.length * trimmedShare);
  return times.toSorted((a, b) => a - b).slice(cut, times.length - cut);
}

function timingScore(times: Record<keyof typeof weights, number>): number {
  const score = (ms: number) => Math.max(0, 100 * (1 - ms / ceilingMs));
  return weights.p50 * score(times.p50) + weights.p95 * score(times.p95) + weights.p99 * score(times.p99);
}

function firstReadyMs(trials: readonly Trial[]): number {
  const ready = trials.flatMap(rampPoint).map(({ readyAt }) => readyAt);
  return ready.length === 0 ? 0 : Math.min(...ready);
}

function rampPoint({ launchedAtMs, ttiMs }: Trial): { launchedAt: number; readyAt: number; ttiMs: number }[] {
  return ttiMs === undefined ? [] : [{ launchedAt: launchedAtMs, readyAt: launchedAtMs + ttiMs, ttiMs }];
}
