/**
 * Writes pages as a diff (diff-format.ts), filling one buffer while the other is being written.
 *
 * Pages are written with O_DIRECT where the file system supports it. They have to be on disk before the save succeeds and are
 * rarely read soon, and writing them through the page cache takes several times as long.
 */
import { constants } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { allSettledOrThrow } from "../all-settled.ts";
import { dataOffset, encodeHeader, indexOffset, RunList, type RunListState } from "./diff-format.ts";
import { OpenFile, pageBytes, readFully } from "./pagemap.ts";

/** Memory moved by one call; about half a millisecond. */
export const chunkBytes = 1 << 20;
/** Enough for one VM that is saved or loaded at a time; more at once allocate their own. */
const maxPooledChunks = 2;
const pooledChunks: Buffer[] = [];

/**
 * A buffer of a chunk's size with arbitrary content. Buffers are pooled, because allocating them triggers garbage collections
 * that take longer than the save itself. It is page-aligned, as O_DIRECT requires: a resizable ArrayBuffer has its own pages.
 */
export function takeChunk(): Buffer {
  return pooledChunks.pop() ?? Buffer.from(new ArrayBuffer(chunkBytes, { maxByteLength: chunkBytes }));
}

/** Call only when no read or write of the buffer is in flight. */
export function giveBackChunk(chunk: Buffer): void {
  if (pooledChunks.length < maxPooledChunks) pooledChunks.push(chunk);
}

/** Written at once while no other write is in flight. */
const minWriteBytes = chunkBytes / 4;
const zeros = Buffer.alloc(pageBytes);
/** Shared by all writers; safe because it is filled and read synchronously. */
const inBase = Buffer.alloc(16 * pageBytes);

export interface SavedMemory {
  bytes: number;
  /** Pages with data. */
  pages: number;
}

/** The state from which another writer continues a diff; a plain object, to be sent to another thread. */
export interface DiffState {
  runs: RunListState;
  /** Where the next page goes. */
  offset: number;
}

export class DiffWriter implements AsyncDisposable {
  readonly #out: FileHandle;
  /** The same file with O_DIRECT. */
  readonly #direct: FileHandle | undefined;
  readonly #base: OpenFile | null;
  #runs = new RunList();
  #buffer = takeChunk();
  #other = takeChunk();
  #filled = 0;
  #written = dataOffset;
  /** All writes in flight. */
  #writing: Promise<unknown> | undefined;
  #closing: Promise<unknown> | undefined;

  /** Creates the file, which must not exist. `base` null: it is all zeros. */
  static open(path: string, base: string | null): Promise<DiffWriter> {
    return DiffWriter.#open(path, "wx", base);
  }

  /** Continues a file that another writer has begun, and that will finish it. */
  static async continue(path: string, base: string | null, state: DiffState): Promise<DiffWriter> {
    const writer = await DiffWriter.#open(path, "r+", base);
    writer.#setState(state);
    return writer;
  }

  static async #open(path: string, flags: "wx" | "r+", base: string | null): Promise<DiffWriter> {
    await using opened = new AsyncDisposableStack();
    const baseFile = base === null ? null : opened.use(new OpenFile(base, "r"));
    const out = opened.use(await open(path, flags, 0o600));
    if (flags === "wx") opened.defer(() => rm(path));
    const writer = new DiffWriter(out, await openDirect(path), baseFile);
    opened.move(); // the writer's from here on
    return writer;
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

  /** Adds the pages that `space` was filled with; pages of zeros are left out or recorded without data. */
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

  /** The buffer is full, or no write is in flight. */
  get isDue(): boolean {
    return this.#filled === chunkBytes || (this.#writing === undefined && this.#filled >= minWriteBytes);
  }

  /** The size of the file once everything taken so far is written. */
  get size(): SavedMemory {
    const { dataPages } = this.#runs;
    return { bytes: indexOffset(dataPages) + this.#runs.bytes().length, pages: dataPages };
  }

  /** Resolves when the file is complete. Closing it begins then and overlaps with the caller's sync. */
  async finish(memoryBytes: number): Promise<void> {
    this.#begin();
    await allSettledOrThrow([
      this.#writing,
      writeFully(this.#out, this.#runs.bytes(), indexOffset(this.#runs.dataPages)),
      writeFully(this.#out, encodeHeader({ memoryBytes, runs: this.#runs }), 0),
    ]);
    this.#close().catch(() => {}); // seen when it is disposed of
  }

  /** Writes everything taken so far, and resolves with what another writer needs to continue. */
  async state(): Promise<DiffState> {
    const state = this.#beginLast();
    await this.#writing;
    return state;
  }

  /** Lets `work` add further pages by a writer of its own, whose state it resolves with. Writes in flight here go on meanwhile. */
  async continueElsewhere(work: (state: DiffState) => Promise<DiffState>): Promise<void> {
    this.#setState(await work(this.#beginLast()));
  }

  #beginLast(): DiffState {
    this.#begin();
    return { runs: this.#runs.state(), offset: this.#written };
  }

  #setState({ runs, offset }: DiffState): void {
    this.#runs = RunList.of(runs);
    this.#written = offset;
  }

  /** Waits for writes in flight. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#writing?.catch(() => {});
    giveBackChunk(this.#buffer);
    giveBackChunk(this.#other);
    this.#base?.[Symbol.dispose]();
    await this.#close();
  }

  #close(): Promise<unknown> {
    this.#closing ??= Promise.all([this.#direct?.close(), this.#out.close()]);
    return this.#closing;
  }

  /** Begins to write the buffer when the previous write is done. */
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

  /** A page of zeros is recorded only where the base is not zero. */
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

/** Undefined where the file system does not support O_DIRECT. */
async function openDirect(path: string): Promise<FileHandle | undefined> {
  try {
    return await open(path, constants.O_WRONLY | constants.O_DIRECT);
  } catch (error) {
    if (!isRefusal(error)) throw error;
    return undefined;
  }
}

/** Writes through `direct` if it is defined and accepts the bytes, else through `out`. Both are the same file. */
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
    await writeFully(out, bytes, position); // the disk's blocks are larger than pages
  }
}

/** EINVAL: O_DIRECT is not supported, or not for this alignment. */
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
