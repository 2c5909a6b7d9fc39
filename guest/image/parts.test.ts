import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { type Parts, part, prune } from "./parts.ts";

let images: string;
let parts: Parts;
let builds: number;

beforeEach(() => {
  images = mkdtempSync(join(tmpdir(), "parts-"));
  parts = { images, isUpgrade: false, say: () => {}, begin: () => () => {} };
  builds = 0;
});

afterEach(() => rmSync(images, { recursive: true }));

async function build(folder: string): Promise<void> {
  builds += 1;
  await writeFile(join(folder, "content"), String(builds));
}

test("a part is built once per key", async () => {
  const first = await part(parts, "kernel", "a".repeat(64), build);
  assert.equal(await part(parts, "kernel", "a".repeat(64), build), first);
  assert.equal(builds, 1);
  assert.notEqual(await part(parts, "kernel", "b".repeat(64), build), first);
  assert.notEqual(await part(parts, "root", "a".repeat(64), build), first);
  assert.equal(builds, 3);
});

test("an upgrade builds it again in the same place", async () => {
  const first = await part(parts, "root", "a".repeat(64), build);
  assert.equal(await part({ ...parts, isUpgrade: true }, "root", "a".repeat(64), build), first);
  assert.equal(readFileSync(join(first, "content"), "utf8"), "2");
});

test("a failed build leaves nothing, a failed upgrade the old part", async () => {
  const fail = async (folder: string) => {
    await build(folder);
    throw new Error("no network");
  };
  await assert.rejects(part(parts, "root", "a".repeat(64), fail), /no network/);
  assert.deepEqual(readdirSync(join(images, "parts")), []);
  const first = await part(parts, "root", "a".repeat(64), build);
  await assert.rejects(part({ ...parts, isUpgrade: true }, "root", "a".repeat(64), fail), /no network/);
  assert.equal(readFileSync(join(first, "content"), "utf8"), "2");
});

test("parts that no current image uses are removed", async () => {
  const old = await part(parts, "root", "a".repeat(64), build);
  const current = await part(parts, "root", "b".repeat(64), build);
  await prune(parts, [current]);
  assert.deepEqual(
    readdirSync(join(images, "parts")).map((name) => join(images, "parts", name)),
    [current],
  );
  assert.notEqual(old, current);
});
