import assert from "node:assert/strict";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  watch,
  writeFileSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { hashDelayMs, Verifier } from "../checkpoint/verifier.ts";
import { openCheckpoint, verifyHashes, writeManifest } from "./checkpoint-folder.ts";
import { DiskSpace } from "./disk-space.ts";
import { allocatedBytes, explainSpace, publish, readJson, writeJson } from "./files.ts";
import { isLocked, lockData } from "./lock.ts";
import { imageLayer, type Manifest, type Saved } from "./manifest.ts";
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

test("a lack of space is reported before writing, and a full disk afterwards", async () => {
  const space = new DiskSpace({ folder, reserveBytes: 0 });
  await space.require(1, "a little");
  await assert.rejects(space.require(2 ** 60, "a lot"), { code: "no_space" });
  const full = Object.assign(new Error("write"), { code: "ENOSPC" });
  assert.equal((explainSpace(full, "pausing") as { code: string }).code, "no_space");
  const other = new Error("else");
  assert.equal(explainSpace(other, "pausing"), other);
});

test("the reserve is left to pauses, which need space beside their own only", async () => {
  const space = new DiskSpace({ folder, reserveBytes: 2 ** 60 });
  await space.requireForPause(1, "a pause");
  await assert.rejects(space.requireForPause(2 ** 60, "a pause"), { code: "no_space", message: /MiB are free$/ });
  await assert.rejects(space.require(1, "a capture"), { code: "no_space", message: /MiB of them for pauses$/ });
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

const hashing = join(folder, "hashing");

test("adding a hash creates no new name in a checkpoint, which may be being removed", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const path = await sealed("watched");
  const names = new Set<string | null>();
  const marked = Promise.withResolvers<void>();
  const watcher = watch(path, (_event, name) => {
    if (name === "marker") marked.resolve();
    else names.add(name);
  });
  const verifier = new Verifier(() => {}, hashing);
  verifier.hashLater(path);
  t.mock.timers.tick(hashDelayMs);
  await verifier.settled();
  writeFileSync(join(path, "marker"), "");
  await marked.promise;
  watcher.close();
  assert.deepEqual([...names], ["manifest.json"]);
  assert.equal(existsSync(hashing), false);
});

test("the verifier adds missing hashes, finds damage, and forgets it with the folder", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const found: string[] = [];
  const verifier = new Verifier((_folder, why) => found.push(why), hashing);
  const path = await sealed("background");
  verifier.hashLater(path);
  await verifier.settled();
  assert.equal((await openCheckpoint(path))?.files["memory.diff"]?.sha256, undefined, "it rests first");
  t.mock.timers.tick(hashDelayMs);
  verifier.verifyLater(path);
  verifier.verifyLater(join(folder, "absent"));
  await verifier.settled();
  assert.match((await openCheckpoint(path))?.files["memory.diff"]?.sha256 ?? "", /^[0-9a-f]{64}$/);
  verifier.requireSound(path);
  writeFileSync(join(path, "memory.diff"), Buffer.alloc(2 << 20, 8));
  verifier.verifyLater(path);
  await verifier.settled();
  assert.equal(found.length, 1);
  assert.throws(() => verifier.requireSound(path), { code: "internal_error", message: /memory.diff is wrong/ });
  verifier.forget(path);
  verifier.requireSound(path);
});

for (const begin of ["verifyLater", "hashLater"] as const) {
  test(`a long verification is aborted at shutdown, and is not reported as damage: ${begin}`, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const found: string[] = [];
    const verifier = new Verifier((_folder, why) => found.push(why), hashing);
    const path = await sealed(begin);
    const manifest = JSON.parse(readFileSync(join(path, "manifest.json"), "utf8")) as Pick<Manifest, "files">;
    truncateSync(join(path, "memory.diff"), 2 ** 40); // zeros that take no room
    manifest.files["memory.diff"] = { bytes: 2 ** 40, ...(begin === "verifyLater" ? { sha256: "0".repeat(64) } : {}) };
    const before = JSON.stringify(manifest);
    writeFileSync(join(path, "manifest.json"), before);
    verifier[begin](path);
    t.mock.timers.tick(hashDelayMs);
    for (let turn = 0; turn < 100; turn++) await new Promise(setImmediate);
    verifier.stop();
    await verifier.settled();
    assert.deepEqual(found, []);
    assert.equal(readFileSync(join(path, "manifest.json"), "utf8"), before);
  });
}

for (const turns of [0, 1, 2, 5, 20]) {
  test(`a checkpoint that is removed while it is read is not reported as damaged: after ${turns} turns`, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const found: string[] = [];
    const verifier = new Verifier((_folder, why) => found.push(why), hashing);
    const path = await sealed(`gone-${turns}`);
    verifier.hashLater(path);
    t.mock.timers.tick(hashDelayMs);
    verifier.verifyLater(path);
    for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
    await rm(path, { recursive: true });
    await verifier.settled();
    assert.deepEqual(found, []);
  });

  test(`a checkpoint that is replaced while it is read is not reported as damaged, nor is the new one changed: after ${turns} turns`, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const found: string[] = [];
    const verifier = new Verifier((_folder, why) => found.push(why), hashing);
    const [path, newer] = [await sealed(`older-${turns}`), await sealed(`newer-${turns}`)];
    writeFileSync(join(newer, "state"), "other devices");
    writeFileSync(join(newer, "memory.diff"), Buffer.alloc(2 << 20, 8));
    await writeManifest(newer, about, ["state", "memory.diff"], { hashAll: false });
    verifier.hashLater(path);
    t.mock.timers.tick(hashDelayMs);
    verifier.verifyLater(path);
    for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
    renameSync(path, `${path}-was`);
    renameSync(newer, path); // nothing of ours runs between the two
    await verifier.settled();
    assert.deepEqual(found, []);
    const manifest = (await openCheckpoint(path))!;
    assert.equal(manifest.files.state?.bytes, 13);
    await verifyHashes(path, manifest);
    assert.deepEqual(readdirSync(path).sort(), ["manifest.json", "memory.diff", "state"]);
  });
}
