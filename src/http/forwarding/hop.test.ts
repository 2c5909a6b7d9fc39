/**
 * Tests of the HTTP server once more, through a host that passes each request on to the one that holds the capsules. Tests that look at
 * the server itself, in place of its answers, are left out.
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";

const files = ["routes/exec", "routes/processes", "ports/port-proxy", "ports/upgrade"];

test("a host that holds nothing passes the tests of the one that holds the capsules", () => {
  const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
  const paths = files.map((name) => join(import.meta.dirname, "..", `${name}.test.ts`));
  const { status, stdout } = spawnSync(process.execPath, ["--test", "--test-reporter=tap", ...paths], {
    env: { ...environment, CAPSULE_TEST_HOP: "1" },
    encoding: "utf8",
  });
  assert.equal(status, 0, stdout);
  const passed = Number(/^# pass (\d+)$/m.exec(stdout)?.[1]);
  assert.ok(passed > 120, `${passed} tests`);
});
