import assert from "node:assert/strict";
import { test } from "node:test";
import { pieceBytes } from "../vmm/memory/piece-hashes.ts";
import { chunkBytes, chunkCount, chunkLength, filledParts, isZero, isZeroHash } from "./chunks.ts";
import { sha256Of } from "./sealed-bucket.ts";

test("a chunk is a piece of a checkpoint's hashes, and the last one of a file is shorter", () => {
  assert.equal(chunkBytes, pieceBytes);
  assert.deepEqual([0, 1, chunkBytes, chunkBytes + 1].map(chunkCount), [0, 1, 1, 2]);
  assert.deepEqual([chunkLength(chunkBytes + 5, 0), chunkLength(chunkBytes + 5, 1)], [chunkBytes, 5]);
});

test("zeros are known by their bytes and by their hash", async () => {
  for (const bytes of [1, 65_536, chunkBytes - 1, chunkBytes]) {
    const zeros = Buffer.alloc(bytes);
    assert.ok(isZero(zeros) && isZeroHash(await sha256Of(zeros), bytes));
    zeros[bytes - 1] = 1;
    assert.ok(!isZero(zeros) && !isZeroHash(await sha256Of(zeros), bytes));
  }
});

test("the parts of a chunk with a byte in them are found in steps of 64 KiB", () => {
  const step = 65_536;
  const bytes = Buffer.alloc(5 * step + 10);
  assert.deepEqual([...filledParts(bytes)], []);
  bytes[step] = 1;
  bytes[3 * step - 1] = 1;
  bytes[5 * step + 9] = 1;
  assert.deepEqual(
    [...filledParts(bytes)],
    [
      [step, 3 * step],
      [5 * step, 5 * step + 10],
    ],
  );
  assert.deepEqual([...filledParts(Buffer.alloc(0))], []);
});
