import assert from "node:assert/strict";
import { constants } from "node:fs";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { chunkBytes, giveBackChunk, takeChunk } from "./chunks.ts";

test("a chunk that was given back is taken again, and few are kept", () => {
  const taken = Array.from({ length: 5 }, takeChunk);
  assert.equal(new Set(taken).size, taken.length);
  for (const chunk of taken) giveBackChunk(chunk);
  const again = Array.from({ length: 5 }, takeChunk);
  assert.equal(again.filter((chunk) => taken.includes(chunk)).length, 2);
  for (const chunk of again) giveBackChunk(chunk);
});

test("a chunk can be written past the page cache", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "chunks-"));
  try {
    const path = join(folder, "direct");
    const flags = constants.O_CREAT | constants.O_RDWR;
    const direct = await open(path, flags | constants.O_DIRECT).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EINVAL") throw error;
    });
    if (direct === undefined) return t.skip("the file system has no such way");
    const chunk = takeChunk().fill(7);
    const { bytesWritten } = await direct.write(chunk, 0, chunkBytes, 0);
    giveBackChunk(chunk);
    await direct.close();
    assert.equal(bytesWritten, chunkBytes);
    await using plain = await open(path);
    assert.deepEqual(await plain.readFile(), Buffer.alloc(chunkBytes, 7));
  } finally {
    await rm(folder, { recursive: true });
  }
});
