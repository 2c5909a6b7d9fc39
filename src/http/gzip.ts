/**
 * Archives are compressed and decompressed here, piece by piece, at the pace of the slower side. The work is done by Node's
 * worker threads, a piece at a time of each archive; so a team has few of them at once (docs/adr/0048).
 */
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createGunzip, createGzip } from "node:zlib";
import { CapsuleError } from "../wire/errors.ts";

/** Archives of one team that are compressed or decompressed at once. */
export const gzipStreamsMax = 2;

const pieceBytes = 64 * 1024;
/** A third of the default's time, for files a tenth larger. */
const level = 1;
const magic = [0x1f, 0x8b] as const;

export function gzipped(body: Readable): Readable {
  const packed = createGzip({ level, chunkSize: pieceBytes });
  // A failure of either destroys both; the reader of `packed` is told of it.
  pipeline(body, packed).catch(() => {});
  return packed;
}

/**
 * The archive in the chunks, decompressed if it begins as a gzip file. `begin` is called before that and waited for; the
 * function that it resolves with, at the end.
 */
export async function* unpacked(
  chunks: AsyncGenerator<Buffer, void>,
  begin: () => Promise<() => void>,
): AsyncGenerator<Buffer, void> {
  const { head, rest } = await withHead(chunks, magic.length);
  if (!magic.every((byte, at) => head[at] === byte)) {
    yield* rest;
    return;
  }
  const end = await begin();
  try {
    yield* gunzipped(rest);
  } finally {
    end();
  }
}

/** The first bytes, at least `bytes` of them unless there are fewer, and all chunks. */
async function withHead(chunks: AsyncGenerator<Buffer, void>, bytes: number) {
  let head: Buffer = Buffer.alloc(0);
  while (head.length < bytes) {
    const next = await chunks.next();
    if (next.done) break;
    head = Buffer.concat([head, next.value]);
  }
  async function* rest() {
    if (head.length > 0) yield head;
    yield* chunks;
  }
  return { head, rest: rest() };
}

async function* gunzipped(chunks: AsyncGenerator<Buffer, void>): AsyncGenerator<Buffer, void> {
  const inflated = createGunzip({ chunkSize: pieceBytes });
  const source = Readable.from(chunks, { objectMode: false, highWaterMark: pieceBytes });
  const fed = pipeline(source, inflated);
  fed.catch(() => {}); // the loop below throws it
  try {
    for await (const piece of inflated) yield piece;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (!code?.startsWith("Z_")) throw error;
    throw new CapsuleError("invalid_request", `the archive is damaged: gzip: ${message}`);
  }
}
