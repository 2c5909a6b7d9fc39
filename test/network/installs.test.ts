/** Runs installs-inside.ts: programs of capsules install from archives in a network namespace. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { ownNpm, withoutOwnNpm } from "./archives.ts";
import { run } from "./separate-run.ts";

const unshare = ["unshare", "--net", "--mount"];
const isPossible = process.getuid!() === 0 && spawnSync(unshare[0]!, [...unshare.slice(1), "true"]).status === 0;
const skip = !isPossible && "without root, or namespaces";

const installs = join(import.meta.dirname, "installs-inside.ts");
let code: number | undefined;

test("programs install from archives by the policies of their capsules", { skip, timeout: 900_000 }, async () => {
  const ran = await run([...unshare, process.execPath, installs]);
  code = ran[0];
  assert.equal(code, 0, ran[1]);
});

const withoutNpm = skip || (ownNpm() === undefined && withoutOwnNpm);
test("npm is one of these programs", { skip: withoutNpm }, () => assert.equal(code, 0));
