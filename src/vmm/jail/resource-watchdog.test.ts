import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { ResourceWatchdog } from "./resource-watchdog.ts";

const limits = { dataBytes: 1_000, cpus: 3 };

test("more memory than the limit is noticed at once", () => {
  const overuse = new ResourceWatchdog(limits);
  assert.equal(overuse.check({ atMs: 0, spentTicks: 0, ownBytes: 1_000 }), undefined);
  assert.equal(overuse.check({ atMs: 1, spentTicks: 0, ownBytes: 1_001 }), "memory: 1001 bytes, of 1000");
});

test("more CPUs than the limit are noticed when they are taken for long, and bursts are not", () => {
  const overuse = new ResourceWatchdog(limits);
  const use = (sec: number, cpuSec: number) =>
    overuse.check({ atMs: sec * 1_000, spentTicks: cpuSec * 100, ownBytes: 0 });
  assert.equal(use(0, 500), undefined, "what it took before is of no interest");
  assert.equal(use(5, 600), undefined, "20 CPUs for 5 s");
  assert.equal(use(35, 605), undefined, "105 s of CPU in 35 s: exactly 3");
  assert.equal(use(50, 650), undefined);
  assert.equal(use(65, 696), "processor: 3.0 CPUs for 30 s, of 3");
});

test("a real process is looked at, and not more often than needed", () => {
  const child = spawn("sleep", ["100"]);
  try {
    const overuse = new ResourceWatchdog({ dataBytes: 1, cpus: 1 });
    assert.match(overuse.sample(child.pid!) ?? "nothing", /^memory: \d{4,} bytes, of 1$/);
    assert.equal(overuse.sample(child.pid!), undefined, "it was looked at just now");
    assert.equal(
      new ResourceWatchdog({ dataBytes: 1, cpus: 1 }).sample(2 ** 30),
      undefined,
      "there is no such process",
    );
  } finally {
    child.kill("SIGKILL");
  }
});
