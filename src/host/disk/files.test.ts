import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { openCheckpoint, verifyHashes, writeManifest } from "./checkpoint-folder.ts";
import { allocatedBytes, explainSpace, publish, readJson, writeJson } from "./files.ts";
import { isLocked, lockData } from "./lock.ts";
import { imageLayer, type Saved } from "./manifest.ts";
import { Paths } from "./paths.ts";

const folder = mkdtempSync(join(tmpdir(), "host-"));
after(() => rmSync(folder, { recursive: true }));

const machine = {
  qemu: "10.0.2",
  accelerator: "tcg",
  cpu: "max",
  devices: ["ports:1"],
  vcpus: 1,
  memoryMb: 512,
} as const;
const layers = [imageLayer("minimal", "ab", null)];
const below = { machine, layers, agent: { protocol: 1 }, revision: 7, frozen: true } as const;
const about: Saved = { ...below, kind: "pause", diskLayer: { bytes: 5, mtimeNs: 12n } };

async function sealed(name: string): Promise<string> {
  const path = join(folder, name);
  mkdirSync(path);
  writeFileSync(join(path, "state"), "devices");
  writeFileSync(join(path, "memory.diff"), Buffer.alloc(2 << 20, 7));
  await writeManifest(path, about, ["state", "memory.diff"], { hashAll: false });
  return path;
}

test("a checkpoint is opened as it was written; large files are hashed only when asked", async () => {
  const manifest = await openCheckpoint(await sealed("good"));
  assert.equal(manifest?.files.state?.bytes, 7);
  assert.match(manifest?.files.state?.sha256 ?? "", /^[0-9a-f]{64}$/);
  assert.equal(manifest?.files["memory.diff"]?.sha256, undefined);
  assert.equal(await openCheckpoint(join(folder, "absent")), undefined);
});

test("a file that is still being written is listed with its final size", async () => {
  for (const bytes of [5, 3 << 20]) {
    const path = join(folder, `pending-${bytes}`);
    mkdirSync(path);
    writeFileSync(join(path, "state"), "devices");
    const { promise: written, resolve: end } = Promise.withResolvers<void>();
    let isListed = false;
    const pending = { "memory.diff": { bytes, written } };
    const listing = writeManifest(path, about, ["state", "memory.diff"], { hashAll: false, pending });
    void listing.then(() => {
      isListed = true;
    });
    for (let turn = 0; turn < 50; turn++) await new Promise(setImmediate);
    assert.ok(!isListed);
    writeFileSync(join(path, "memory.diff"), Buffer.alloc(bytes, 7));
    end();
    const manifest = await listing;
    assert.deepEqual(await openCheckpoint(path), manifest);
    assert.equal(manifest.files["memory.diff"]?.bytes, bytes);
    assert.equal(manifest.files["memory.diff"]?.sha256 !== undefined, bytes < 1 << 20);
    await verifyHashes(path, await writeManifest(path, about, ["state", "memory.diff"], { hashAll: true, pending }));
  }
});

test("a manifest is not written for a file that is incomplete", async () => {
  const path = join(folder, "cut-off");
  mkdirSync(path);
  writeFileSync(join(path, "state"), "devices");
  for (const bytes of [5, 3 << 20]) {
    const pending = { "memory.diff": { bytes, written: Promise.reject(new Error("the disk is full")) } };
    await assert.rejects(
      writeManifest(path, about, ["state", "memory.diff"], { hashAll: false, pending }),
      /the disk is full/,
    );
    writeFileSync(join(path, "memory.diff"), Buffer.alloc(bytes - 1, 7));
    const shorter = { "memory.diff": { bytes, written: Promise.resolve() } };
    const listing = writeManifest(path, about, ["state", "memory.diff"], { hashAll: false, pending: shorter });
    await assert.rejects(listing, new RegExp(`has become ${bytes - 1} bytes instead of ${bytes}`));
  }
});

test("a damaged checkpoint is refused: manifest, size, missing file, small file's content", async () => {
  const damages: [string, (path: string) => void][] = [
    ["manifest", (path) => writeFileSync(join(path, "manifest.json"), "{")],
    ["size", (path) => truncateSync(join(path, "memory.diff"), 5)],
    ["missing", (path) => rmSync(join(path, "state"))],
    ["content", (path) => writeFileSync(join(path, "state"), "devicez")],
  ];
  for (const [name, damage] of damages) {
    const path = await sealed(name);
    damage(path);
    await assert.rejects(openCheckpoint(path), { code: "internal_error" }, name);
  }
});

test("a whole verification finds a flipped bit in a large file", async () => {
  const path = await sealed("large");
  const manifest = await writeManifest(path, about, ["state", "memory.diff"], { hashAll: true });
  await verifyHashes(path, manifest);
  writeFileSync(join(path, "memory.diff"), Buffer.alloc(2 << 20, 8));
  await assert.rejects(verifyHashes(path, manifest), { code: "internal_error" });
});

test("a large file with its hash in the manifest, of format 1, is verified with a pause after each MiB", async () => {
  const path = await sealed("former");
  const memory = Buffer.alloc(5 << 20, 7);
  writeFileSync(join(path, "memory.diff"), memory);
  const manifest = await writeManifest(path, about, ["memory.diff"], { hashAll: false });
  const former = { ...manifest, files: { "memory.diff": { bytes: memory.length, sha256: hash("sha256", memory) } } };
  const tookMs: number[] = [];
  const pause = async (took: number) => void tookMs.push(took);
  await verifyHashes(path, former, { pause });
  assert.equal(tookMs.length, 5);
  assert.ok(tookMs.every((took) => took > 0));
  const abort = new AbortController();
  const stop = async () => abort.abort();
  await assert.rejects(verifyHashes(path, former, { pause: stop, signal: abort.signal }), { name: "AbortError" });
  writeFileSync(join(path, "memory.diff"), memory.fill(8, 4 << 20));
  await assert.rejects(verifyHashes(path, former), {
    code: "internal_error",
    message: /checksum of memory.diff is wrong/,
  });
});

test("JSON files are replaced whole, and a missing one is undefined", async () => {
  const path = join(folder, "some.json");
  assert.equal(await readJson(path), undefined);
  await writeJson(path, { a: 1 }, { durable: true });
  await writeJson(path, { a: 2 }, { durable: false });
  assert.deepEqual(await readJson(path), { a: 2 });
  assert.ok(!readdirSync(folder).includes("some.json.new"));
});

test("a published folder moves as a whole", async () => {
  const from = join(folder, "from");
  mkdirSync(from);
  writeFileSync(join(from, "x"), "x");
  await publish(from, join(folder, "to"));
  assert.deepEqual(readdirSync(join(folder, "to")), ["x"]);
});

test("a full disk is reported as a lack of space", () => {
  const full = Object.assign(new Error("write"), { code: "ENOSPC" });
  assert.equal((explainSpace(full, "pausing") as { code: string }).code, "no_space");
  const other = new Error("else");
  assert.equal(explainSpace(other, "pausing"), other);
});

test("holes take no space", async () => {
  const path = join(folder, "sparse");
  mkdirSync(path);
  writeFileSync(join(path, "hole"), "");
  truncateSync(join(path, "hole"), 1 << 30);
  assert.ok((await allocatedBytes(path)) < 1 << 16);
});

test("folder names that could leave the data folder are refused", () => {
  const paths = new Paths("/data");
  assert.equal(paths.capsule("cl-1"), "/data/capsules/cl-1");
  for (const bad of ["", ".", "..", "a/b", "../x", "a\0", "x".repeat(200)])
    assert.throws(() => paths.capsule(bad), /not a folder name/);
});

test("one daemon per data folder", () => {
  const lock = lockData(folder);
  assert.ok(isLocked(folder));
  assert.throws(() => lockData(folder), new RegExp(`in use by a running server \\(pid ${process.pid}\\)`));
  lock.release();
  assert.ok(!isLocked(folder));
  lockData(folder).release();
});
