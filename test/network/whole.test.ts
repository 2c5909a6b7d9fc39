/** Runs whole-inside.ts: a server, its relay and real capsules, beside an internet in a network namespace. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { run } from "./separate-run.ts";

const unshare = ["unshare", "--net", "--mount"];
const isPossible = process.getuid!() === 0 && spawnSync(unshare[0]!, [...unshare.slice(1), "true"]).status === 0;
const skip = !isPossible && "without root, or namespaces";

test("capsules reach the internet by their policies, through pauses, restarts and deaths", {
  skip,
  timeout: 900_000,
}, async () => {
  const [code, output] = await run([...unshare, process.execPath, join(import.meta.dirname, "whole-inside.ts")]);
  assert.equal(code, 0, output);
});
