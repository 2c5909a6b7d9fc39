/**
 * A VM's memory, out of a stopped process and into a new one. Only pages that differ from the base file move, so the
 * cost follows what the guest has written and not how much memory it has.
 *
 *      save:   /proc/<pid>/pagemap → own pages → /proc/<pid>/mem → diff file (diff-format.ts)
 *      load:   diff file → /proc/<pid>/mem of a QEMU that waits for its devices
 *
 * Reading and writing another process's memory never waits for a disk, so it is done in place, a few milliseconds at a
 * time; files are read and written on the thread pool meanwhile.
 */
import { readSync, writeSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { damaged, dataOffset, encodeHeader, indexOffset, RunList, readDiff } from "./diff-format.ts";
import { type Mapping, mappingsOf, ownPages, pageBytes } from "./pagemap.ts";

/** Memory moved by one call; about a millisecond. */
const chunkBytes = 2 << 20;
/** How long the event loop may have to wait for us. */
const sliceMs = 3;
const zeros = Buffer.alloc(chunkBytes);

export interface SavedMemory {
  bytes: number;
  /** Pages with data. */
  pages: number;
}

/** Writes the diff of a stopped process's memory against its base, durably; `path` must not exist. */
export async function saveMemory(pid: number, base: string, memoryBytes: number, path: string): Promise<SavedMemory> {
  const mappings = await mappingsOf(pid, base, memoryBytes);
  await using memory = await open(`/proc/${pid}/mem`, "r");
  await using baseFile = await open(base, "r");
  await using out = await open(path, "wx", 0o600);
  try {
    const isBaseEmpty = (await baseFile.stat()).blocks === 0;
    const writer = new DiffWriter(out, isBaseEmpty ? null : baseFile);
    const pace = new Pace();
    for await (const run of ownPages(pid, mappings)) {
      for (let done = 0; done < run.count; ) {
        await pace.rest();
        const count = Math.min(run.count - done, writer.room());
        readFully(memory, writer.space(count), run.address + done * pageBytes);
        await writer.take(run.page + done, count);
        done += count;
      }
    }
    return await writer.finish(memoryBytes);
  } catch (error) {
    await rm(path, { force: true });
    throw error;
  }
}

/** Lets the event loop run when it has waited long enough. */
class Pace {
  #since = performance.now();

  async rest(): Promise<void> {
    if (performance.now() - this.#since < sliceMs) return;
    await new Promise(setImmediate);
    this.#since = performance.now();
  }
}

/** Gathers pages in one of two buffers while the other is being written. */
class DiffWriter {
  readonly #out: FileHandle;
  readonly #base: FileHandle | null;
  readonly #basePages = Buffer.alloc(chunkBytes);
  readonly #runs = new RunList();
  #buffer = Buffer.alloc(chunkBytes);
  #other = Buffer.alloc(chunkBytes);
  #filled = 0;
  #written = dataOffset;
  #writing: Promise<unknown> = Promise.resolve();

  /** `base` null: it is all zeros. */
  constructor(out: FileHandle, base: FileHandle | null) {
    this.#out = out;
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
  async take(page: number, count: number): Promise<void> {
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
    if (this.#filled === chunkBytes) await this.#flush();
  }

  async finish(memoryBytes: number): Promise<SavedMemory> {
    await this.#flush();
    await this.#writing;
    const index = this.#runs.bytes();
    const offset = indexOffset(this.#runs.dataPages);
    await writeFully(this.#out, index, offset);
    await writeFully(this.#out, encodeHeader({ memoryBytes, runs: this.#runs }), 0);
    await this.#out.datasync();
    return { bytes: offset + index.length, pages: this.#runs.dataPages };
  }

  async #flush(): Promise<void> {
    await this.#writing;
    const bytes = this.#buffer.subarray(0, this.#filled);
    this.#writing = writeFully(this.#out, bytes, this.#written);
    this.#writing.catch(() => {}); // seen by the next await
    this.#written += this.#filled;
    this.#filled = 0;
    [this.#buffer, this.#other] = [this.#other, this.#buffer];
  }

  /** Pages that are zero now matter only where the base is not. */
  #noteZeros(page: number, count: number): void {
    if (this.#base === null || count === 0) return;
    const inBase = this.#basePages.subarray(0, count * pageBytes);
    readFully(this.#base, inBase, page * pageBytes);
    for (let index = 0; index < count; index++) {
      if (!isZeroPage(inBase, index * pageBytes)) this.#runs.add(page + index, 1, true);
    }
  }
}

/** Puts a diff's pages into a process that maps the same base. */
export async function loadMemory(pid: number, base: string, memoryBytes: number, path: string): Promise<void> {
  const mappings = await mappingsOf(pid, base, memoryBytes);
  await using memory = await open(`/proc/${pid}/mem`, "r+");
  await using file = await open(path, "r");
  const pace = new Pace();
  await forEachPiece(file, memoryBytes, (bytes, page) => {
    writeMapped(memory, mappings, bytes, page * pageBytes);
    return pace.rest();
  });
}

/**
 * Calls `use` for every piece of a diff, in order: its bytes and the page they begin at. The bytes are ours again when it
 * is done. The next stretch of the file is read ahead meanwhile.
 */
export async function forEachPiece(
  file: FileHandle,
  memoryBytes: number,
  use: (bytes: Buffer, page: number, isZero: boolean) => Promise<void>,
): Promise<void> {
  const { runs, dataPages } = await readDiff(file, memoryBytes);
  const reader = new DataReader(file, dataPages);
  for (const { page, count, isZero } of runs) {
    for (let done = 0; done < count; ) {
      const bytes = isZero ? zeros.subarray(0, (count - done) * pageBytes) : await reader.next(count - done);
      await use(bytes, page + done, isZero);
      done += bytes.length / pageBytes;
    }
  }
}

/** The data pages of a diff in order, a chunk ahead. */
class DataReader {
  readonly #file: FileHandle;
  readonly #endOffset: number;
  #buffer = Buffer.alloc(chunkBytes);
  #other = Buffer.alloc(chunkBytes);
  #offset = dataOffset;
  #at = 0;
  #available = 0;
  #ahead: Promise<number>;

  constructor(file: FileHandle, dataPages: number) {
    this.#file = file;
    this.#endOffset = indexOffset(dataPages);
    this.#ahead = this.#read();
  }

  /** Up to `pages` pages, at least one. */
  async next(pages: number): Promise<Buffer> {
    if (this.#at === this.#available) {
      this.#available = await this.#ahead;
      this.#at = 0;
      [this.#buffer, this.#other] = [this.#other, this.#buffer];
      this.#ahead = this.#read();
    }
    const bytes = Math.min(pages * pageBytes, this.#available - this.#at);
    this.#at += bytes;
    return this.#buffer.subarray(this.#at - bytes, this.#at);
  }

  #read(): Promise<number> {
    const length = Math.min(chunkBytes, this.#endOffset - this.#offset);
    const position = this.#offset;
    this.#offset += length;
    const target = this.#other;
    const reading = (async () => {
      for (let got = 0; got < length; ) {
        const { bytesRead } = await this.#file.read(target, got, length - got, position + got);
        if (bytesRead === 0) throw damaged("it ends too early");
        got += bytesRead;
      }
      return length;
    })();
    reading.catch(() => {}); // seen by whoever asks for it
    return reading;
  }
}

/** Writes to where the process shows this stretch of the base file. */
function writeMapped(memory: FileHandle, mappings: Mapping[], bytes: Buffer, offset: number): void {
  for (let done = 0; done < bytes.length; ) {
    const at = offset + done;
    const mapping = mappings.find((candidate) => at >= candidate.offset && at < candidate.offset + candidate.bytes)!;
    const within = at - mapping.offset;
    const length = Math.min(bytes.length - done, mapping.bytes - within);
    const wrote = writeSync(memory.fd, bytes, done, length, mapping.address + within);
    if (wrote === 0) throw new Error("the process's memory takes no more");
    done += wrote;
  }
}

function isZeroPage(buffer: Buffer, at: number): boolean {
  return buffer[at] === 0 && buffer.compare(zeros, 0, pageBytes, at, at + pageBytes) === 0;
}

function readFully(file: FileHandle, into: Buffer, position: number): void {
  for (let got = 0; got < into.length; ) {
    const bytesRead = readSync(file.fd, into, got, into.length - got, position + got);
    if (bytesRead === 0) throw new Error("memory ended early");
    got += bytesRead;
  }
}

export async function writeFully(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, position + done);
    done += bytesWritten;
  }
}
