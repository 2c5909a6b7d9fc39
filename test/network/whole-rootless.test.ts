/** Runs whole-inside.ts by a service without root: its relay is jailed without a user of its own. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { run } from "./separate-run.ts";

const isRoot = process.getuid!() === 0;
const nobody = 65_534;
const images = resolve(process.env.CAPSULE_IMAGES_FROM ?? join(import.meta.dirname, "../../.capsule/images"));
const namespaces = ["unshare", "--user", "--map-root-user", "--net", "--mount"];
const program = [...namespaces, process.execPath, join(import.meta.dirname, "whole-rootless.ts")];

/** As root: the program run by nobody, who sees the images in a folder of its own. */
function byNobody(folder: string): string[] {
  const own = join(folder, "images");
  mkdirSync(own);
  for (const each of [folder, own]) chownSync(each, nobody, nobody);
  chmodSync(folder, 0o700);
  const drop = ["setpriv", "--reuid", String(nobody), "--regid", String(nobody), "--clear-groups"];
  const script = 'mount --bind "$0" "$1" && CAPSULE_IMAGES_FROM=$1 && export CAPSULE_IMAGES_FROM && shift && exec "$@"';
  return ["unshare", "--mount", "sh", "-c", script, images, own, ...drop, ...program];
}

const isPossible = spawnSync(namespaces[0]!, [...namespaces.slice(1), "true"]).status === 0;
const skip = !isPossible && "without user namespaces";

test("capsules of a service without root reach the internet by their policies", {
  skip,
  timeout: 900_000,
}, async () => {
  const folder = mkdtempSync(join(tmpdir(), "rootless-"));
  try {
    const [code, output] = await run(isRoot ? byNobody(folder) : program);
    assert.equal(code, 0, output);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
