/** A host alone loads nothing of the cluster. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";

const source = join(import.meta.dirname, "..");
const script = `
  import { registerHooks } from "node:module";
  const loaded = [];
  registerHooks({ load: (url, context, next) => (loaded.push(url), next(url, context)) });
  await import(process.argv[1]);
  console.log(JSON.stringify(loaded));
`;

function modulesOf(file: string): string[] {
  const asked = ["--input-type=module", "--eval", script, join(source, file)];
  const { stdout, stderr, status } = spawnSync(process.execPath, asked, { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout);
}

const ofCluster = (url: string) => /\/src\/(cluster|http\/forwarding)\/|\/node_modules\/pg\//.test(url);

test("the daemon of a host alone loads no module of the cluster", () => {
  const loaded = modulesOf("daemon.ts");
  assert.ok(
    loaded.some((url) => url.endsWith("/src/http/gate.ts")),
    "the HTTP server is among the modules",
  );
  assert.deepEqual(loaded.filter(ofCluster), []);
  assert.ok(modulesOf("cluster/peer-server.ts").some(ofCluster));
});
