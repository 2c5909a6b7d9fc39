import assert from "node:assert/strict";
import { test } from "node:test";
import { runHelper } from "./oom-score.ts";

test("a helper's messages are English, whatever the language of the service", async (t) => {
  const before = process.env.LC_ALL;
  t.after(() => {
    if (before === undefined) delete process.env.LC_ALL;
    else process.env.LC_ALL = before;
  });
  process.env.LC_ALL = "de_DE.UTF-8";
  const { stdout } = await runHelper("/bin/sh", ["-c", "echo $LC_ALL"]);
  assert.equal(stdout, "C\n");
});
