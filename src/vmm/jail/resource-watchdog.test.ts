import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { ResourceWatchdog } from "./resource-watchdog.ts";

const limits = { dataBytes: 1_000, cpus: 3 };

test("more memory than the limit is reported at once", () => {
  const watchdog = new ResourceWatchdog(limits);
  assert.equal(watchdog.check({ atMs: 0, spentTicks: 0, memoryBytes: 1_000 }), undefined);
  assert.equal(watchdog.check({ atMs: 1, spentTicks: 0, memoryBytes: 1_001 }), "memory: 1001 bytes, of 1000");
});

test("more CPUs than the limit are reported over 30 s, shorter bursts are not", () => {
  const watchdog = new ResourceWatchdog(limits);
  const use = (sec: number, cpuSec: number) =>
    watchdog.check({ atMs: sec * 1_000, spentTicks: cpuSec * 100, memoryBytes: 0 });
  assert.equal(use(0, 500), undefined, "CPU time from before the first sample does not count");
  assert.equal(use(5, 600), undefined, "20 CPUs for 5 s");
  assert.equal(use(35, 605), undefined, "105 s of CPU in 35 s: exactly 3");
  assert.equal(use(50, 650), undefined);
  assert.equal(use(65, 696), "processor: 3.0 CPUs for 30 s, of 3");
});

test("a real process is sampled", () => {
  const child = spawn("sleep", ["100"]);
  try {
    const watchdog = new ResourceWatchdog({ dataBytes: 1, cpus: 1 });
    assert.match(watchdog.sample(child.pid!) ?? "nothing", /^memory: \d{4,} bytes, of 1$/);
    assert.equal(
      new ResourceWatchdog({ dataBytes: 1, cpus: 1 }).sample(2 ** 30),
      undefined,
      "there is no such process",
    );
  } finally {
    child.kill("SIGKILL");
  }
});
