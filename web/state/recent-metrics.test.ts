import assert from "node:assert/strict";
import { test } from "node:test";
import type { CapsuleMetric } from "../../src/sdk/sdk.ts";
import { followedMax, RecentMetrics } from "./recent-metrics.ts";

const minute = 60_000;
const point = (at: number) => ({ at, cpuPct: 1, vcpus: 1 }) as CapsuleMetric;

test("only new points are asked for; old ones, and capsules that are gone, are forgotten", async () => {
  const asked: [string, number][] = [];
  let answer: CapsuleMetric[] = [];
  const recent = new RecentMetrics(async (id, since) => {
    asked.push([id, since]);
    return answer;
  });
  const times = (id: string) => recent.series.value.get(id)?.map(({ at }) => at);
  answer = [point(20 * minute), point(21 * minute)];
  await recent.update(["a", "b"], 30 * minute);
  answer = [point(36 * minute)];
  await recent.update(["a"], 35.5 * minute);
  assert.deepEqual(asked, [
    ["a", 15 * minute],
    ["b", 15 * minute],
    ["a", 21 * minute],
  ]);
  assert.deepEqual([times("a"), times("b")], [[21 * minute, 36 * minute], undefined]);
});

test("a capsule that cannot be read keeps its points; only so many are read", async () => {
  let isBroken = false;
  const asked = new Set<string>();
  const recent = new RecentMetrics(async (id) => {
    asked.add(id);
    if (isBroken) throw new Error("unavailable");
    return [point(10)];
  });
  const ids = Array.from({ length: followedMax + 5 }, (_, index) => `c${index}`);
  await recent.update(ids, 20);
  isBroken = true;
  await recent.update(ids, 30);
  assert.equal(asked.size, followedMax);
  assert.deepEqual(recent.series.value.get("c0"), [point(10)]);
});
