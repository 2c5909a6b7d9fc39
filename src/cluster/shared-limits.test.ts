/** Limits of a cluster on a host whose own differ. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { loadConfig } from "../config.ts";
import { largestShape, SharedLimits } from "./shared-limits.ts";

function sharedBy(shared: Record<string, unknown>, set: string[] = []) {
  const own = { ...loadConfig({}).limits, vcpus_max: 8, memory_max_mb: 4_096, capsules_max: 10, path_max_bytes: 100 };
  const told: unknown[] = [];
  const note = (about: object) => void told.push((about as { limit: string }).limit);
  const log = { info() {}, warn: note, error() {} };
  return { own, told, ...{ of: new SharedLimits({ own, shared, set: new Set(set), log }) } };
}

test("the cluster's values are used, and another one that is set here is told", () => {
  const { of, own, told } = sharedBy({ capsules_max: 20, path_max_bytes: 100, exec_timeout_max_sec: 5, odd: 1 }, [
    "capsules_max",
    "path_max_bytes",
  ]);
  assert.deepEqual([of.limits.capsules_max, of.limits.exec_timeout_max_sec, of.limits.path_max_bytes], [20, 5, 100]);
  assert.deepEqual(told, ["capsules_max"]);
  assert.equal(own.capsules_max, 10);
  assert.equal("odd" in of.limits, false);
});

test("the largest shape is that of the largest host", () => {
  const largest = largestShape([{ vcpus_max: 4, memory_max_mb: 8_192 }, { vcpus_max: "99" }, { vcpus_max: 16 }]);
  assert.deepEqual(largest, { vcpus_max: 16, memory_max_mb: 8_192 });
  const { limits } = sharedBy(largest).of;
  assert.deepEqual([limits.vcpus_max, limits.memory_max_mb], [16, 8_192]);
  const small = sharedBy(largestShape([{}])).of.limits;
  assert.deepEqual([small.vcpus_max, small.memory_max_mb], [8, 4_096]);
});

test("a quota that is changed holds at once, and another limit is told once", () => {
  const { of, told } = sharedBy({ capsules_max: 20 });
  for (let times = 0; times < 2; times++) of.follow({ capsules_max: 30, path_max_bytes: 200, vcpus_max: 1, odd: null });
  assert.deepEqual([of.limits.capsules_max, of.limits.path_max_bytes, of.limits.vcpus_max], [30, 100, 8]);
  assert.deepEqual(told, ["path_max_bytes"]);
});
