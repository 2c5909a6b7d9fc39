/** The systemd unit that `./dev install` writes. */
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";

const repository = resolve(import.meta.dirname, "../..");

function unit(env: Record<string, string> = {}): string {
  return execFileSync(join(repository, "dev"), ["unit"], { env: { ...process.env, ...env }, encoding: "utf8" });
}

test("stopping the service ends the server alone, and the next one finds its data", () => {
  const text = unit({ CAPSULE_DATA: "/srv/capsules" });
  assert.match(text, /^KillMode=process$/m);
  assert.match(text, /^Delegate=yes$/m);
  assert.match(text, /^Environment=CAPSULE_DATA=\/srv\/capsules$/m);
  assert.match(text, /^ReadWritePaths=\/srv\/capsules$/m);
  assert.match(unit({ CAPSULE_DATA: "" }), /^Environment=CAPSULE_DATA=\/var\/lib\/capsule$/m);
  assert.doesNotMatch(text, /@[A-Z]+@/);
});

test("it waits for longer than the server takes to stop", () => {
  const seconds = Number(/^TimeoutStopSec=(\d+)$/m.exec(unit())?.[1]);
  const drainMs = Number(
    /"CAPSULE_DRAIN_MS", "(\d+)"/.exec(readFileSync(join(repository, "src/config.ts"), "utf8"))?.[1],
  );
  assert.ok(seconds * 1_000 > 4 * drainMs, `${seconds} s for a drain of ${drainMs} ms, twice, and the rest`);
});

const hasSystemd = spawnSync("systemd-analyze", ["--version"]).status === 0;
test("systemd finds nothing wrong with it", { skip: !hasSystemd && "there is no systemd-analyze here" }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-unit-"));
  try {
    const path = join(folder, "capsule.service");
    writeFileSync(path, unit());
    const { status, stdout, stderr } = spawnSync("systemd-analyze", ["verify", path], { encoding: "utf8" });
    assert.equal(status, 0, stderr);
    assert.equal(stdout + stderr, "");
  } finally {
    rmSync(folder, { recursive: true });
  }
});
