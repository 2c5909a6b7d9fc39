/**
 * The tests of capsules' changes once more, with an ownership that decides after some turns of the event loop. The tests of what a
 * host alone does at once are left out.
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { seedOf } from "../../test/conformance/random.ts";

const files = [
  ...["capsules", "concurrent", "deadlines", "idle", "lifecycle", "networks", "quotas", "reconciler", "recovery"],
  ...["stops", "../templates/templates"],
];

const atOnce = [
  "DELETE waits its turn and wins, whatever is under way",
  "a capsule is starting at once and running when its VM is up",
  "a capsule that is being destroyed has no deadline",
  "a team whose pauses take long holds up no other team's deadlines, at a start neither",
  "access is undefined where there is no capsule, and once it is being destroyed",
  "deadlines that passed while the server was away act at its start, in the order of the times",
  "memory is set aside until the start is over, however it ends",
  "the memory of all running capsules is that of the table, also when a destroy ends a resume",
];

test("a host whose capsules others decide about passes the tests of one that is alone", (t) => {
  const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
  const skips = atOnce.map((title) => `--test-skip-pattern=/^${title}$/`);
  const paths = files.map((name) => join(import.meta.dirname, `${name}.test.ts`));
  const { status, stdout } = spawnSync(process.execPath, ["--test", "--test-reporter=tap", ...skips, ...paths], {
    env: { ...environment, CAPSULE_TEST_OWNERSHIP: String(seedOf(t)) },
    encoding: "utf8",
  });
  assert.equal(status, 0, stdout);
  const passed = Number(/^# pass (\d+)$/m.exec(stdout)?.[1]);
  assert.ok(passed > 100, `${passed} tests`);
});
