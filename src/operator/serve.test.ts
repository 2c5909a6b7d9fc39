import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";

test("serve refuses an address that others can reach without TLS, in one clear sentence, and touches nothing", () => {
  const folder = mkdtempSync(join(tmpdir(), "serve-"));
  try {
    const { status, stderr } = spawnSync(process.execPath, [resolve(import.meta.dirname, "../main.ts"), "serve"], {
      env: { ...process.env, CAPSULE_HOST: "0.0.0.0", CAPSULE_DATA: join(folder, "data"), CAPSULE_PORT: "0" },
      encoding: "utf8",
      timeout: 120_000,
    });
    assert.equal(status, 1, stderr);
    assert.match(
      stderr,
      /^capsule serve: CAPSULE_HOST is 0\.0\.0\.0, .*CAPSULE_TLS_CERT.*CAPSULE_PLAIN_HTTP=anywhere\n$/,
    );
    assert.ok(!existsSync(join(folder, "data")));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("this Node knows the V8 flag that serve sets", () => {
  const { stdout } = spawnSync(process.execPath, ["--v8-options"], { encoding: "utf8" });
  assert.ok(stdout.includes("  --semi-space-growth-factor ("));
});
