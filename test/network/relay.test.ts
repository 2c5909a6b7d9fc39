/** Runs relay-walls.ts in a network namespace: as root, and as a user in a namespace of its own. */
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { run } from "./separate-run.ts";

const isRoot = process.getuid!() === 0;
const walls = join(import.meta.dirname, "relay-walls.ts");
const nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

test("the walls hold in a jail of root's", { skip: !isRoot && "without root" }, async () => {
  const [code, output] = await run(["unshare", "--net", process.execPath, walls]);
  assert.equal(code, 0, output);
});

test("the walls hold in a jail without root", async () => {
  const unshare = ["unshare", "--user", "--map-root-user", "--net", process.execPath, walls, "rootless"];
  const [code, output] = await run(isRoot ? [...nobody, ...unshare] : unshare);
  assert.equal(code, 0, output);
});
