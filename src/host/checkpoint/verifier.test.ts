import assert from "node:assert/strict";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type TestContext, test } from "node:test";
import { hashPieces } from "../../vmm/memory/piece-hashes.ts";
import { diskLayerOf, openCheckpoint, verifyHashes, writeManifest } from "../disk/checkpoint-folder.ts";
import { encodeHashes, hashFiles, readHashes } from "../disk/hashes.ts";
import { imageLayer } from "../disk/manifest.ts";
import { hashDelayMs, retryDelayMs, Verifier } from "./verifier.ts";

const machine = {
  ...{ qemu: "10.0.2", accelerator: "tcg" as const, cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
};
const below = { machine, layers: [imageLayer("minimal", "ab", null)], agent: { protocol: 1 }, frozen: true };

/** `failures`: codes with which the reads of the first pieces fail. */
function setUp(t: TestContext, failures: string[] = []) {
  const data = mkdtempSync(join(tmpdir(), "verifier-"));
  t.after(() => rmSync(data, { recursive: true }));
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const found: string[] = [];
  let pieces = 0;
  const pause = async () => {
    const code = failures[pieces++];
    if (code !== undefined) throw Object.assign(new Error(`${code}: read`), { code, errno: -1, syscall: "read" });
  };
  const verifier = new Verifier((_folder, why) => found.push(why), join(data, "hashing"), pause);
  return { data, verifier, found, read: () => pieces };
}

/** A paused capsule's checkpoint. */
async function paused(data: string, id = "cl-1", fill = 7): Promise<string> {
  const folder = join(data, id, "checkpoint");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(data, id, "disk.qcow2"), "layer");
  writeFileSync(join(folder, "state"), "devices");
  writeFileSync(join(folder, "memory.diff"), Buffer.alloc(5 << 20, fill));
  const diskLayer = diskLayerOf(join(data, id, "disk.qcow2"));
  await writeManifest(folder, { ...below, kind: "pause", revision: 7, diskLayer }, ["state", "memory.diff"], {
    hashAll: false,
  });
  return folder;
}

async function template(data: string, name = "t"): Promise<string> {
  const folder = join(data, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "state"), "devices");
  writeFileSync(join(folder, "memory"), Buffer.alloc(5 << 20, 7));
  const saved = { ...below, kind: "template", revision: null, diskLayer: null } as const;
  await writeManifest(folder, saved, ["state", "memory"], { hashAll: true });
  return folder;
}

test("large files of a pause are hashed after a delay, in a file that the manifest names, and its disk layer is not", async (t) => {
  const { data, verifier, found, read } = setUp(t);
  const folder = await paused(data);
  const manifest = readFileSync(join(folder, "manifest.json"), "utf8");
  verifier.hashLater(folder);
  await verifier.settled();
  assert.equal(await readHashes(folder), undefined);
  t.mock.timers.tick(hashDelayMs);
  await verifier.settled();
  assert.deepEqual(await readHashes(folder), {
    "memory.diff": await hashPieces(join(folder, "memory.diff")),
  });
  assert.equal(read(), 2, "with a pause after each piece");
  assert.equal((await openCheckpoint(folder))?.hashes, "hashes");
  assert.equal(readFileSync(join(folder, "manifest.json"), "utf8"), manifest);
  assert.deepEqual([found, readdirSync(data)], [[], ["cl-1"]]);
});

test("a capsule that is paused many times is hashed once, after the last pause", async (t) => {
  const { data, verifier, read } = setUp(t);
  const folder = await paused(data);
  for (let pause = 1; pause <= 20; pause++) {
    verifier.hashLater(folder);
    t.mock.timers.tick(hashDelayMs / 2);
    await verifier.settled();
    assert.equal(read(), 0);
  }
  t.mock.timers.tick(hashDelayMs / 2);
  await verifier.settled();
  assert.equal(read(), 2);
});

test("a checkpoint that is to leave is hashed without the delay; after a failure it waits for the next attempt", async (t) => {
  const { data, verifier, found } = setUp(t);
  const folder = await paused(data);
  writeFileSync(join(data, "hashing"), "in the way");
  const hasten = async () => {
    verifier.hashNow(folder);
    t.mock.timers.tick(0);
    await verifier.settled();
  };
  verifier.hashLater(folder);
  for (let ask = 0; ask < 2; ask++) await hasten();
  assert.equal(found.length, 1);
  rmSync(join(data, "hashing"));
  t.mock.timers.tick(retryDelayMs);
  await verifier.settled();
  assert.ok(await readHashes(folder));
});

test("a checkpoint that is forgotten before the delay is over is not hashed", async (t) => {
  const { data, verifier, read } = setUp(t);
  const folder = await paused(data);
  verifier.hashLater(folder);
  verifier.forget(folder);
  t.mock.timers.tick(hashDelayMs);
  await verifier.settled();
  assert.deepEqual([read(), await readHashes(folder)], [0, undefined]);
});

test("a checkpoint is not hashed again, nor by two at the same time", async (t) => {
  const { data, verifier, read } = setUp(t);
  const folder = await paused(data);
  verifier.hashMissing([folder, folder]);
  await verifier.settled();
  assert.equal(read(), 2);
  verifier.hashLater(folder);
  t.mock.timers.tick(hashDelayMs);
  await verifier.settled();
  assert.equal(read(), 2);
});

test("a start hashes what an earlier daemon did not come to, and reads nothing of a thousand other checkpoints", async (t) => {
  const { data, verifier, read } = setUp(t);
  const one = await paused(data, "cl-0");
  const folders: string[] = [];
  for (let number = 1; number <= 1_000; number++) {
    const folder = join(data, `cl-${number}`, "checkpoint");
    mkdirSync(folder, { recursive: true });
    for (const name of ["manifest.json", "hashes", "state", "memory.diff"]) writeFileSync(join(folder, name), "x");
    folders.push(folder);
  }
  const readBytes = () => Number(/rchar: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))![1]);
  const before = readBytes();
  verifier.hashMissing([...folders, join(data, "running", "checkpoint")]);
  await verifier.settled();
  assert.ok(readBytes() - before < 1_000, "fewer bytes than checkpoints: those of reading the counter");
  assert.equal(read(), 0);
  verifier.hashMissing([...folders, one]);
  await verifier.settled();
  assert.equal(read(), 2);
  assert.ok(await readHashes(one));
});

test("a checkpoint of format 1 is not hashed", async (t) => {
  const { data, verifier, found, read } = setUp(t);
  const folder = await paused(data);
  const { files } = (await openCheckpoint(folder))!;
  const former = { ...{ qemu: "10", accelerator: "tcg", cpu: "max" }, layout: 1, vcpus: 1, memoryMb: 512 };
  const value = { format: 1, kind: "pause", machine: former, image: { name: "minimal", hash: "ab" }, files };
  writeFileSync(join(folder, "manifest.json"), JSON.stringify({ ...value, createdAt: "2026-11-20T10:00:00.000Z" }));
  verifier.hashMissing([folder]);
  await verifier.settled();
  assert.deepEqual([read(), found, await readHashes(folder)], [0, [], undefined]);
});

test("a base or template is verified at its first use only, and refused once it was found damaged", async (t) => {
  const { data, verifier, found, read } = setUp(t);
  const folder = await template(data);
  for (const _ of [1, 2]) verifier.verifyOnce(folder);
  verifier.verifyOnce(join(data, "absent"));
  await verifier.settled();
  assert.deepEqual([read(), found], [4, []], "two small files, and one of two pieces");
  verifier.requireSound(folder);
  writeFileSync(join(folder, "memory"), Buffer.alloc(5 << 20, 7).fill(8, (4 << 20) + 9, (4 << 20) + 10));
  verifier.forget(folder);
  verifier.verifyOnce(folder);
  await verifier.settled();
  assert.equal(found.length, 1);
  const message = /memory differs from its checksum after byte 4194304/;
  assert.throws(() => verifier.requireSound(folder), { code: "internal_error", message });
  verifier.forget(folder);
  verifier.requireSound(folder);
});

for (const code of ["ENOSPC", "EDQUOT", "EMFILE", "ENOMEM"]) {
  test(`a checkpoint that cannot be read for ${code} is not refused, and is read again later`, async (t) => {
    const { data, verifier, found, read } = setUp(t, [code, code]);
    const [pause, saved] = [await paused(data), await template(data)];
    verifier.hashMissing([pause]);
    verifier.verifyOnce(saved);
    await verifier.settled();
    assert.equal(read(), 2);
    const why = `it could not be checked, and will be again: ${code}: read`;
    assert.deepEqual(found, [why, why]);
    for (const folder of [pause, saved]) verifier.requireSound(folder);
    t.mock.timers.tick(retryDelayMs);
    verifier.verifyOnce(saved);
    verifier.verifyOnce(saved);
    await verifier.settled();
    assert.equal(read(), 2 + 2 + 4);
    assert.ok(await readHashes(pause));
    assert.equal(found.length, 2);
  });
}

test("a checkpoint whose bytes the disk no longer returns is refused", async (t) => {
  const { data, verifier, found } = setUp(t, ["EIO", "EIO"]);
  const folders = [await paused(data), await template(data)];
  verifier.hashMissing(folders.slice(0, 1));
  verifier.verifyOnce(folders[1]!);
  await verifier.settled();
  assert.deepEqual(found, ["EIO: read", "EIO: read"]);
  for (const folder of folders) assert.throws(() => verifier.requireSound(folder), { code: "internal_error" });
});

test("hashes that cannot be written leave the checkpoint as it is, and are made later", async (t) => {
  const { data, verifier, found } = setUp(t);
  const folder = await paused(data);
  writeFileSync(join(data, "hashing"), "in the way");
  verifier.hashMissing([folder]);
  await verifier.settled();
  assert.equal(found.length, 1);
  assert.match(found[0]!, /its hashes cannot be written: EEXIST/);
  verifier.requireSound(folder);
  rmSync(join(data, "hashing"));
  t.mock.timers.tick(retryDelayMs);
  await verifier.settled();
  assert.ok(await readHashes(folder));
});

test("a file that cannot be opened for a reason other than its bytes is no damage; a manifest that is no JSON is", async (t) => {
  const { data, verifier, found } = setUp(t);
  const folder = await template(data);
  rmSync(join(folder, "memory"));
  symlinkSync("memory", join(folder, "memory"));
  verifier.verifyOnce(folder);
  await verifier.settled();
  assert.equal(found.length, 1);
  verifier.requireSound(folder);
  writeFileSync(join(folder, "manifest.json"), "{");
  verifier.verifyOnce(folder);
  const pause = await paused(data);
  writeFileSync(join(pause, "manifest.json"), "{");
  verifier.hashMissing([pause]);
  await verifier.settled();
  for (const each of [folder, pause]) assert.throws(() => verifier.requireSound(each), /its manifest cannot be used/);
});

test("a checkpoint of a later release is neither checked nor refused here", async (t) => {
  const { data, verifier, found } = setUp(t);
  const folder = await template(data);
  const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
  writeFileSync(join(folder, "manifest.json"), JSON.stringify({ ...manifest, format: 3 }));
  verifier.verifyOnce(folder);
  await verifier.settled();
  verifier.requireSound(folder);
  assert.deepEqual(found, []);
});

for (const begin of ["verifyOnce", "hashLater"] as const) {
  test(`long work is aborted at shutdown, and is not reported as damage: ${begin}`, async (t) => {
    const { data, verifier, found } = setUp(t);
    const folder = begin === "hashLater" ? await paused(data) : await template(data);
    const name = begin === "hashLater" ? "memory.diff" : "memory";
    const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
    truncateSync(join(folder, name), 2 ** 40); // zeros that take no room
    manifest.files[name] = { bytes: 2 ** 40, ...(begin === "hashLater" ? {} : { sha256: "0".repeat(64) }) };
    writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
    const before = readdirSync(folder);
    verifier[begin](folder);
    t.mock.timers.tick(hashDelayMs);
    for (let turn = 0; turn < 100; turn++) await new Promise(setImmediate);
    await verifier.stop();
    assert.deepEqual([found, readdirSync(folder)], [[], before]);
  });
}

for (const turns of [0, 1, 2, 5, 20, 100]) {
  test(`a checkpoint that is forgotten and removed gets no new name, and is no damage: after ${turns} turns`, async (t) => {
    const { data, verifier, found } = setUp(t);
    const folder = await paused(data);
    verifier.hashLater(folder);
    t.mock.timers.tick(hashDelayMs);
    for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
    verifier.forget(folder);
    const removed = rm(folder, { recursive: true });
    await verifier.settled();
    await removed; // rejects when a name was added
    assert.deepEqual(found, []);
  });

  test(`a checkpoint that is replaced while it is read keeps the newer one's hashes right: after ${turns} turns`, async (t) => {
    const { data, verifier, found } = setUp(t);
    const [folder, newer] = [await paused(data, "older"), await paused(data, "newer", 8)];
    verifier.hashLater(folder);
    t.mock.timers.tick(hashDelayMs);
    for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
    renameSync(folder, `${folder}-was`);
    renameSync(newer, folder); // nothing of ours runs between the two
    await verifier.settled();
    assert.deepEqual(found, []);
    await verifyHashes(folder, (await openCheckpoint(folder))!);
  });
}

test("memory is hashed also while a resumed guest writes to the disk layer", async (t) => {
  const { data, verifier, found } = setUp(t);
  const folder = await paused(data);
  writeFileSync(join(dirname(folder), "disk.qcow2"), "layer that a resumed guest has written to");
  verifier.hashMissing([folder]);
  await verifier.settled();
  assert.deepEqual([found, Object.keys((await readHashes(folder))!)], [[], ["memory.diff"]]);
});

test("hashes that also have a disk layer's are read", async (t) => {
  const { data } = setUp(t);
  const folder = await paused(data);
  const hashes = await hashFiles(
    { "memory.diff": join(folder, "memory.diff"), "disk.qcow2": join(dirname(folder), "disk.qcow2") },
    {},
  );
  writeFileSync(join(folder, "hashes"), encodeHashes(hashes));
  assert.deepEqual(await readHashes(folder), hashes);
  await verifyHashes(folder, (await openCheckpoint(folder))!);
});
