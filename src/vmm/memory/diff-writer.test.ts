/** Writing with and without O_DIRECT, and pooled buffers. The content of diffs is tested in memory-diff.test.ts. */
import assert from "node:assert/strict";
import { constants } from "node:fs";
import { type FileHandle, mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { chunkBytes, giveBackChunk, takeChunk, writePages } from "./diff-writer.ts";

/** A new file, opened both ways. */
async function withFile(t: TestContext, use: (direct: FileHandle, out: FileHandle) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "direct-"));
  try {
    await using out = await open(join(folder, "file"), "wx+");
    const opening = open(join(folder, "file"), constants.O_WRONLY | constants.O_DIRECT);
    const direct = await opening.catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EINVAL") throw error;
    });
    if (direct === undefined) return t.skip("the file system has no such way");
    await use(direct, out).finally(() => direct.close());
  } finally {
    await rm(folder, { recursive: true });
  }
}

test("a chunk is aligned for O_DIRECT", (t) =>
  withFile(t, async (direct, out) => {
    const chunk = takeChunk().fill(7);
    assert.equal((await direct.write(chunk, 0, chunkBytes, 0)).bytesWritten, chunkBytes);
    giveBackChunk(chunk);
    assert.deepEqual(await out.readFile(), Buffer.alloc(chunkBytes, 7));
  }));

test("bytes that O_DIRECT does not accept are written through the page cache", (t) =>
  withFile(t, async (direct, out) => {
    const bytes = Buffer.alloc(5_000, 7).subarray(1);
    const takesAnything = await direct.write(bytes, 0, bytes.length, 0).catch(({ code }) => code !== "EINVAL");
    if (takesAnything) return t.skip("this disk takes anything");
    await writePages(direct, out, bytes, 0);
    assert.deepEqual(await out.readFile(), bytes);
  }));

test("chunks are reused, and few are kept", () => {
  const taken = Array.from({ length: 5 }, takeChunk);
  assert.equal(new Set(taken).size, taken.length);
  for (const chunk of taken) giveBackChunk(chunk);
  const again = Array.from({ length: 5 }, takeChunk);
  assert.equal(again.filter((chunk) => taken.includes(chunk)).length, 2);
  for (const chunk of again) giveBackChunk(chunk);
});
