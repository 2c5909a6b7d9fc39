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

const ofCluster = (url: string) => /\/src\/(cluster|bucket|http\/forwarding)\/|\/node_modules\/(pg|s3mini)\//.test(url);

test("the daemon of a host alone loads no module of the cluster", () => {
  const loaded = modulesOf("daemon.ts");
  assert.ok(
    loaded.some((url) => url.endsWith("/src/http/gate.ts")),
    "the HTTP server is among the modules",
  );
  assert.deepEqual(loaded.filter(ofCluster), []);
  assert.ok(modulesOf("cluster/peer-server.ts").some(ofCluster));
});

test("the package of S3 is loaded with a bucket, and not before", () => {
  const isS3 = (url: string) => /\/node_modules\/s3mini\//.test(url);
  for (const file of [
    "operator/cluster.ts",
    "cluster/cluster-file.ts",
    "joined.ts",
    "bucket/opening.ts",
    "operator/bucket-check.ts",
  ])
    assert.deepEqual(modulesOf(file).filter(isS3), [], file);
  assert.ok(modulesOf("bucket/s3-objects.ts").some(isS3));
});
