import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { damaged, readDiff } from "./diff-format.ts";
import { forEachPiece } from "./diff-reader.ts";
import { DiffWriter } from "./diff-writer.ts";
import { pageBytes } from "./pagemap.ts";
import { hashPieces, PieceCheck, pieceBytes } from "./piece-hashes.ts";

const folder = mkdtempSync(join(tmpdir(), "pieces-"));
after(() => rmSync(folder, { recursive: true }));

const hashOf = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

test("the pieces of a file are hashed, the last one as short as it is", async () => {
  const bytes = randomBytes(2 * pieceBytes + 5);
  writeFileSync(join(folder, "whole"), bytes);
  const pauses: number[] = [];
  const pause = async (tookMs: number) => void pauses.push(tookMs);
  const { sha256, bytes: size } = await hashPieces(join(folder, "whole"), { pause });
  assert.equal(size, bytes.length);
  assert.deepEqual(sha256, [
    hashOf(bytes.subarray(0, pieceBytes)),
    hashOf(bytes.subarray(pieceBytes, 2 * pieceBytes)),
    hashOf(bytes.subarray(2 * pieceBytes)),
  ]);
  assert.equal(pauses.length, 3);
});

test("holes are hashed as zeros and not read", async () => {
  const path = join(folder, "sparse");
  writeFileSync(path, "x");
  truncateSync(path, 2 ** 36); // 64 GiB
  await using file = await open(path, "r+");
  await file.write(Buffer.from("y"), 0, 1, 2 ** 35 + 7);
  let reads = 0;
  const { sha256 } = await hashPieces(path, { pause: async () => void reads++ });
  assert.equal(reads, 2);
  assert.equal(sha256.length, 2 ** 36 / pieceBytes);
  const piece = Buffer.alloc(pieceBytes);
  assert.equal(sha256[1], hashOf(piece));
  piece[7] = 0x79;
  assert.equal(sha256[2 ** 35 / pieceBytes], hashOf(piece));
});

test("a file with a map of holes beyond 1 MiB is read whole: parsing it would stop the event loop", async () => {
  const path = join(folder, "fragmented");
  const stride = 16 << 10; // larger than the pages and blocks of common file systems
  const extents = 10_000;
  {
    await using file = await open(path, "w");
    for (let extent = 0; extent < extents; extent++) await file.write("x", extent * stride);
    await file.truncate(256 << 20);
  }
  const { stdout } = spawnSync("qemu-img", ["map", "--output=json", "-f", "raw", path], { maxBuffer: 16 << 20 });
  assert.ok(stdout.length > 1 << 20, `the map has ${stdout.length} bytes`);
  let reads = 0;
  const { sha256 } = await hashPieces(path, { pause: async () => void reads++ });
  assert.equal(reads, (256 << 20) / pieceBytes);
  assert.equal(sha256.at(-1), hashOf(Buffer.alloc(pieceBytes)));
  rmSync(path);
});

test("hashing ends when it is aborted", async () => {
  const abort = new AbortController();
  const pause = async () => abort.abort(new Error("stopped"));
  await assert.rejects(hashPieces(join(folder, "whole"), { signal: abort.signal, pause }), /stopped/);
});

/** A diff of nine MiB of data, its bytes, and its hashes. */
async function diff() {
  const path = join(folder, "diff");
  rmSync(path, { force: true });
  const pages = (9 << 20) / pageBytes;
  {
    await using writer = await DiffWriter.open(path, null);
    for (let page = 0; page < pages; page++) {
      randomBytes(pageBytes).copy(writer.space(1));
      writer.take(2 * page, 1);
      if (writer.isDue) await writer.flush();
    }
    await writer.finish(32 << 20);
  }
  const pieces = await hashPieces(path);
  const load = async (expected = pieces) => {
    await using file = await open(path, "r");
    let used = 0;
    const count = async (bytes: Buffer) => {
      used += bytes.length;
    };
    await forEachPiece(file, await readDiff(file, 32 << 20), count, new PieceCheck(expected, damaged));
    return used;
  };
  return { path, pieces, load, pages };
}

test("a diff is checked while it is loaded: each byte of it, without reading it again", async () => {
  const { path, pieces, load, pages } = await diff();
  assert.equal(await load(), pages * pageBytes);
  for (const at of [100, 4_096, pieceBytes - 1, pieceBytes, 9 << 20, pieces.bytes - 1]) {
    await using file = await open(path, "r+");
    const { buffer } = await file.read(Buffer.alloc(1), 0, 1, at);
    const flip = () => file.write(Buffer.from([buffer[0]! ^ 4]), 0, 1, at);
    await flip();
    await assert.rejects(load(), { code: "internal_error" }, `byte ${at}`);
    await file.write(buffer, 0, 1, at);
  }
  assert.equal(await load(), pages * pageBytes);
  const [first = "", ...rest] = pieces.sha256;
  await assert.rejects(
    load({ ...pieces, sha256: [...rest, first] }),
    /its bytes from 0 on are not those that were saved/,
  );
  await assert.rejects(load({ ...pieces, sha256: [...pieces.sha256, first] }), /shorter than when it was saved/);
});

test("the bytes of a piece may be reused when they have been taken", async () => {
  const bytes = randomBytes(pieceBytes);
  const check = new PieceCheck(
    { bytes: 2 * pieceBytes, sha256: [hashOf(bytes), hashOf(Buffer.alloc(pieceBytes))] },
    Error,
  );
  await check.add(bytes);
  bytes.fill(0);
  await check.add(bytes);
  await check.finish();
});
