import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";

const script = `
  import { spawnSync } from "node:child_process";
  import { closeInheritedFds } from ${JSON.stringify(join(import.meta.dirname, "inherited-fds.ts"))};
  const seen = () => spawnSync("ls", ["-l", "/proc/self/fd"], { encoding: "utf8" }).stdout.includes(" 88 -> ");
  console.log(seen());
  closeInheritedFds();
  console.log(seen());`;

test("a descriptor inherited from the parent is not passed on to child processes", () => {
  const node = [process.execPath, "--input-type=module-typescript", "-e", script];
  const { stdout, stderr } = spawnSync("bash", ["-c", 'exec 88</etc/passwd; exec "$@"', "bash", ...node], {
    encoding: "utf8",
  });
  assert.equal(stdout, "true\nfalse\n", stderr);
});
