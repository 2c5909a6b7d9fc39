/** Runs policies-inside.ts in a network namespace, where it may listen on ports 80 and 443. */
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { run } from "./separate-run.ts";

const isRoot = process.getuid!() === 0;

test("rows and relay agree, whenever the server is killed", { skip: !isRoot && "without root" }, async () => {
  const [code, output] = await run([
    "unshare",
    "--net",
    process.execPath,
    join(import.meta.dirname, "policies-inside.ts"),
  ]);
  assert.equal(code, 0, output);
});
