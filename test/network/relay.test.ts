/** Runs relay-walls.ts in a network namespace: as root, and as a user in a namespace of its own. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";

const isRoot = process.getuid!() === 0;
const walls = join(import.meta.dirname, "relay-walls.ts");
const nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

/** The exit code, and everything that was printed. */
async function run(command: readonly string[]): Promise<[code: number, output: string]> {
  const [program = "", ...args] = command;
  // Without the variables of the runner, the tests inside are a run of their own.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], env });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (chunk: Buffer) => {
      output += chunk;
    });
  const [code] = (await once(child, "close")) as [number];
  return [code, output];
}

test("the walls hold in a jail of root's", { skip: !isRoot && "without root" }, async () => {
  const [code, output] = await run(["unshare", "--net", process.execPath, walls]);
  assert.equal(code, 0, output);
});

test("the walls hold in a jail without root", async () => {
  const unshare = ["unshare", "--user", "--map-root-user", "--net", process.execPath, walls, "rootless"];
  const [code, output] = await run(isRoot ? [...nobody, ...unshare] : unshare);
  assert.equal(code, 0, output);
});
