/** Runs inject-inside.ts in a network namespace, where it may listen on port 443. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";

const isRoot = process.getuid!() === 0;

test("a capsule calls an API whose key is nowhere in it", { skip: !isRoot && "without root" }, async () => {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env; // the tests inside are a run of their own
  const program = join(import.meta.dirname, "inject-inside.ts");
  const child = spawn("unshare", ["--net", process.execPath, program], { stdio: ["ignore", "pipe", "pipe"], env });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (chunk: Buffer) => {
      output += chunk;
    });
  const [code] = (await once(child, "close")) as [number];
  assert.equal(code, 0, output);
});
