/**
 * Gathers a memory's own pages and writes them as a diff (diff-format.ts): into one buffer while the other is being written.
 *
 * Pages go to the disk past the page cache, where the file system can do that. They must be on disk before anybody is told,
 * and are read again hours later if at all; the way through the cache takes several times as long.
 */
import { constants } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { allSettledOrThrow } from "../all-settled.ts";
import { chunkBytes, giveBackChunk, takeChunk } from "./chunks.ts";
import { dataOffset, encodeHeader, indexOffset, RunList } from "./diff-format.ts";
import { type OpenFile, pageBytes, readFully } from "./pagemap.ts";

/** A disk that has nothing to do is given as little as this. */
const leastBytes = chunkBytes / 4;
const zeros = Buffer.alloc(pageBytes);
/** Of all writers: it is filled and looked at in one go. */
const inBase = Buffer.alloc(16 * pageBytes);

export interface SavedMemory {
  bytes: number;
  /** Pages with data. */
  pages: number;
}

export class DiffWriter implements AsyncDisposable {
  readonly #out: FileHandle;
  /** The same file, past the page cache. */
  readonly #direct: FileHandle | undefined;
  readonly #base: OpenFile | null;
  readonly #runs = new RunList();
  #buffer = takeChunk();
  #other = takeChunk();
  #filled = 0;
  #written = dataOffset;
  /** Everything that is being written. */
  #writing: Promise<unknown> | undefined;
  #closing: Promise<unknown> | undefined;

  /** Makes the file, which must not exist. `base` null: it is all zeros. */
  static async open(path: string, base: OpenFile | null): Promise<DiffWriter> {
    const out = await open(path, "wx", 0o600);
    try {
      return new DiffWriter(out, await openDirect(path), base);
    } catch (error) {
      await out.close();
      await rm(path);
      throw error;
    }
  }

  private constructor(out: FileHandle, direct: FileHandle | undefined, base: OpenFile | null) {
    this.#out = out;
    this.#direct = direct;
    this.#base = base;
  }

  /** Pages that fit before the next flush. */
  room(): number {
    return (chunkBytes - this.#filled) / pageBytes;
  }

  space(pages: number): Buffer {
    return this.#buffer.subarray(this.#filled, this.#filled + pages * pageBytes);
  }

  /** Takes the pages that `space` was filled with; those that are zero are left out or noted without data. */
  take(page: number, count: number): void {
    const start = this.#filled;
    let zeroPages = 0;
    for (let index = 0; index < count; index++) {
      const from = start + index * pageBytes;
      if (isZeroPage(this.#buffer, from)) {
        zeroPages++;
        continue;
      }
      this.#noteZeros(page + index - zeroPages, zeroPages);
      zeroPages = 0;
      if (from !== this.#filled) this.#buffer.copyWithin(this.#filled, from, from + pageBytes);
      this.#filled += pageBytes;
      this.#runs.add(page + index, 1, false);
    }
    this.#noteZeros(page + count - zeroPages, zeroPages);
  }

  /** There is no more room, or a disk that has nothing to do. */
  get isDue(): boolean {
    return this.#filled === chunkBytes || (this.#writing === undefined && this.#filled >= leastBytes);
  }

  /** What has been taken, and what the file has when all of it is written. */
  get size(): SavedMemory {
    const { dataPages } = this.#runs;
    return { bytes: indexOffset(dataPages) + this.#runs.bytes().length, pages: dataPages };
  }

  /** Resolves when the file is whole. Closing it is begun then, for whoever syncs it meanwhile. */
  async finish(memoryBytes: number): Promise<void> {
    this.#begin();
    await allSettledOrThrow([
      this.#writing,
      writeFully(this.#out, this.#runs.bytes(), indexOffset(this.#runs.dataPages)),
      writeFully(this.#out, encodeHeader({ memoryBytes, runs: this.#runs }), 0),
    ]);
    this.#close().catch(() => {}); // seen when it is disposed of
  }

  /** What is still being written ends first. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#writing?.catch(() => {});
    giveBackChunk(this.#buffer);
    giveBackChunk(this.#other);
    await this.#close();
  }

  #close(): Promise<unknown> {
    this.#closing ??= Promise.all([this.#direct?.close(), this.#out.close()]);
    return this.#closing;
  }

  /** Begins to write what is gathered, as soon as what was gathered before is written. */
  async flush(): Promise<void> {
    await this.#writing;
    this.#begin();
  }

  #begin(): void {
    const bytes = this.#buffer.subarray(0, this.#filled);
    const writing = allSettledOrThrow([this.#writing, writePages(this.#direct, this.#out, bytes, this.#written)]).then(
      () => {
        if (this.#writing === writing) this.#writing = undefined;
      },
    );
    writing.catch(() => {}); // seen by the next await
    this.#writing = writing;
    this.#written += this.#filled;
    this.#filled = 0;
    [this.#buffer, this.#other] = [this.#other, this.#buffer];
  }

  /** Pages that are zero now matter only where the base is not. */
  #noteZeros(page: number, count: number): void {
    if (this.#base === null) return;
    for (let done = 0; done < count; done += inBase.length / pageBytes) {
      const pages = inBase.subarray(0, (count - done) * pageBytes);
      readFully(this.#base, pages, (page + done) * pageBytes);
      for (let at = 0; at < pages.length; at += pageBytes) {
        if (!isZeroPage(pages, at)) this.#runs.add(page + done + at / pageBytes, 1, true);
      }
    }
  }
}

/** Undefined where the file system has no way past the page cache. */
async function openDirect(path: string): Promise<FileHandle | undefined> {
  try {
    return await open(path, constants.O_WRONLY | constants.O_DIRECT);
  } catch (error) {
    if (!isRefusal(error)) throw error;
    return undefined;
  }
}

/** By `direct` if there is one and it takes these bytes, there; else by `out`. Both are the same file. */
export async function writePages(
  direct: FileHandle | undefined,
  out: FileHandle,
  bytes: Uint8Array,
  position: number,
): Promise<void> {
  try {
    await writeFully(direct ?? out, bytes, position);
  } catch (error) {
    if (direct === undefined || !isRefusal(error)) throw error;
    await writeFully(out, bytes, position); // a disk of larger blocks than pages
  }
}

/** What the kernel says of a way that it does not have, or of bytes that do not lie as it wants them. */
function isRefusal(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === "EINVAL";
}

function isZeroPage(buffer: Buffer, at: number): boolean {
  return buffer[at] === 0 && buffer.compare(zeros, 0, pageBytes, at, at + pageBytes) === 0;
}

export async function writeFully(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}
