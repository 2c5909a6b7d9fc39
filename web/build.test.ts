/** The bundle for browsers: its sources, its size, and its page. */
import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { bundle } from "./build.ts";

const sentMaxBytes = 250 * 1024;
const packages = ["preact", "@preact", "@xterm", "uplot"];

let parent: string;
let folder: string;
let inputs: string[];

before(async () => {
  parent = await mkdtemp(join(tmpdir(), "capsule-web-"));
  folder = join(parent, "web");
  inputs = await bundle(folder);
});

after(() => rm(parent, { recursive: true, force: true }));

const ours = /^(web|src\/sdk|src\/wire)\//;

test("the bundle consists of the dashboard, the SDK, parts of src/wire and four packages", () => {
  const packaged = new RegExp(`^node_modules/(${packages.join("|")})/`);
  assert.deepEqual(
    inputs.filter((input) => !ours.test(input) && !packaged.test(input)),
    [],
  );
  assert.ok(inputs.includes("src/wire/requirements.ts"), "the table of states is not the server's");
});

test("the bundle is small", async () => {
  const names = await readdir(join(folder, "assets"));
  const files = await Promise.all(
    names.filter((name) => /\.(js|css)$/.test(name)).map((name) => readFile(join(folder, "assets", name))),
  );
  const sentBytes = files.reduce((sum, file) => sum + gzipSync(file).length, 0);
  assert.ok(sentBytes <= sentMaxBytes, `${sentBytes} bytes, compressed`);
});

test("the page refers to hashed files, has no inline code, and loads nothing from other hosts", async () => {
  const html = await readFile(join(folder, "index.html"), "utf8");
  const named = [...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path]) => path!);
  assert.equal(named.filter((path) => /^assets\/(main|theme)-[0-9A-Z]{8}\.(js|css)$/.test(path)).length, 3);
  for (const path of named) await readFile(join(folder, path));
  assert.doesNotMatch(html, /https?:|<style|\sstyle=|\son\w+=|<script(?![^>]*src=)/);
});

test("a second build gives the same names, and leaves no temporary folder", async () => {
  const first = await readdir(join(folder, "assets"));
  await bundle(folder);
  assert.deepEqual(await readdir(join(folder, "assets")), first);
  assert.deepEqual(await readdir(parent), ["web"]);
});
