/**
 * Saving a stopped process's guest memory, and loading it into a new process. Only pages that differ from the base file are
 * moved, so the cost depends on the pages that the guest has written.
 *
 *      save:   /proc/<pid>/pagemap → own pages → /proc/<pid>/mem → diff file (diff-format.ts)
 *      load:   diff file → /proc/<pid>/mem of a QEMU that waits for its devices
 *
 * Another process's memory is read and written synchronously, in slices of a few milliseconds, since that never waits for a
 * disk. Files are read and written on the thread pool meanwhile.
 */
import { fstatSync, writeSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import type { VmProcess } from "../vmm.ts";
import { damaged, dataOffset, indexOffset, type RunList, readDiff, readHeader } from "./diff-format.ts";
import { chunkBytes, DiffWriter, giveBackChunk, type SavedMemory, takeChunk } from "./diff-writer.ts";
import { type Mapping, mappingsOf, OpenFile, openOf, ownPages, type PageRun, pageBytes, readFully } from "./pagemap.ts";

/** Longest time for which the event loop is blocked. */
const sliceMs = 3;
const zeros = Buffer.alloc(chunkBytes);
const chunkPages = chunkBytes / pageBytes;

/**
 * Writes the diff of a process's memory against its base to `path`, which must not exist. The caller syncs it. An incomplete
 * file is removed on disposal.
 */
export class MemorySave implements AsyncDisposable {
  readonly #process: VmProcess;
  readonly #base: string;
  readonly #memoryBytes: number;
  readonly #path: string;
  readonly #resources = new AsyncDisposableStack();
  #open: { mappings: Mapping[]; memory: OpenFile; writer: DiffWriter } | undefined;
  #isCopied = false;
  #isComplete = false;

  constructor(process: VmProcess, base: string, memoryBytes: number, path: string) {
    this.#process = process;
    this.#base = base;
    this.#memoryBytes = memoryBytes;
    this.#path = path;
  }

  /** Opens everything that is the same whether the process is stopped or runs. */
  async open(): Promise<void> {
    const mappings = mappingsOf(this.#process.pid, this.#base, this.#memoryBytes);
    const memory = this.#resources.use(openOf(this.#process, "mem", "r"));
    const base = this.#resources.use(new OpenFile(this.#base, "r"));
    const writer = await DiffWriter.open(this.#path, fstatSync(base.fd).blocks === 0 ? null : base);
    this.#resources.defer(async () => {
      if (!this.#isComplete) await rm(this.#path, { force: true });
    });
    this.#open = { mappings, memory, writer: this.#resources.use(writer) };
  }

  /** Copies all pages of a stopped process, once. The last pages may still be in flight when it resolves. */
  async copy(): Promise<SavedMemory> {
    const { mappings, memory, writer } = this.#opened();
    const slices = new Slices();
    for await (const runs of ownPages(this.#process, mappings)) {
      for (const run of runs) {
        for (let done = 0; done < run.count; ) {
          const count = Math.min(run.count - done, writer.room());
          readFully(memory, writer.space(count), run.address + done * pageBytes);
          writer.take(run.page + done, count);
          done += count;
          if (writer.isDue) await writer.flush();
          if (slices.isOver) await slices.yield();
        }
      }
    }
    this.#isCopied = true;
    return writer.size;
  }

  /** Resolves when the file is complete. */
  async finish(): Promise<void> {
    if (!this.#isCopied) throw new Error("a memory is copied before it is finished");
    await this.#opened().writer.finish(this.#memoryBytes);
    this.#isComplete = true;
  }

  #opened() {
    if (this.#open === undefined) throw new Error("a memory is opened before it is copied");
    return this.#open;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#resources.disposeAsync();
  }
}

/** Yields to the event loop at the end of each slice. */
class Slices {
  #since = performance.now();

  get isOver(): boolean {
    return performance.now() - this.#since >= sliceMs;
  }

  async yield(): Promise<void> {
    await new Promise(setImmediate);
    this.#since = performance.now();
  }
}

/**
 * Overwrites all pages that a stopped process has written with the base's content. `before` is called with these pages first.
 * Throws, and changes nothing, when there are more than `maxPages`.
 */
export async function resetMemory(
  process: VmProcess,
  base: string,
  memoryBytes: number,
  maxPages: number,
  before: (runs: PageRun[]) => Promise<void>,
): Promise<void> {
  const mappings = mappingsOf(process.pid, base, memoryBytes);
  using memory = openOf(process, "mem", "r+");
  const runs: PageRun[] = [];
  let pages = 0;
  for await (const found of ownPages(process, mappings)) {
    for (const run of found) {
      pages += run.count;
      if (pages > maxPages) throw new Error(`process ${process.pid} has more than ${maxPages} pages of its own`);
      runs.push(run);
    }
  }
  await before(runs);
  await using file = await open(base, "r");
  const chunk = takeChunk();
  try {
    for (const { page, count } of runs) {
      for (let done = 0; done < count; done += chunkPages) {
        const piece = chunk.subarray(0, Math.min(chunkPages, count - done) * pageBytes);
        const offset = (page + done) * pageBytes;
        const { bytesRead } = await file.read(piece, 0, piece.length, offset);
        if (bytesRead !== piece.length) throw new Error(`${base} ends too early`);
        writeMapped(memory, mappings, piece, offset);
      }
    }
  } finally {
    giveBackChunk(chunk);
  }
}

/** How many pages a diff puts into a process, those of zeros included. */
export async function countPages(path: string): Promise<number> {
  await using file = await open(path, "r");
  const { dataPages, zeroPages } = await readHeader(file);
  return dataPages + zeroPages;
}

/** The pages that a diff holds, in order. */
export async function pagesOf(path: string, memoryBytes: number): Promise<RunList> {
  await using file = await open(path, "r");
  return (await readDiff(file, memoryBytes)).runs;
}

/** Puts a diff's pages into a process that maps the same base. */
export async function loadMemory(process: VmProcess, base: string, memoryBytes: number, path: string): Promise<void> {
  const mappings = mappingsOf(process.pid, base, memoryBytes);
  using memory = openOf(process, "mem", "r+");
  await using file = await open(path, "r");
  const slices = new Slices();
  await forEachPiece(file, memoryBytes, (bytes, page) => {
    writeMapped(memory, mappings, bytes, page * pageBytes);
    return slices.isOver ? slices.yield() : undefined;
  });
}

/**
 * Calls `use` for every piece of a diff, in order, with its bytes and first page. The buffer is reused when `use` has settled.
 * The next chunk of the file is read ahead.
 */
export async function forEachPiece(
  file: FileHandle,
  memoryBytes: number,
  use: (bytes: Buffer, page: number, isZero: boolean) => Promise<void> | undefined,
): Promise<void> {
  const { runs, dataPages } = await readDiff(file, memoryBytes);
  await using reader = new DataReader(file, dataPages);
  for (const { page, count, isZero } of runs) {
    for (let done = 0; done < count; ) {
      const bytes = isZero ? zeros.subarray(0, (count - done) * pageBytes) : await reader.next(count - done);
      await use(bytes, page + done, isZero);
      done += bytes.length / pageBytes;
    }
  }
}

/** The data pages of a diff in order, read one chunk ahead. */
class DataReader implements AsyncDisposable {
  readonly #file: FileHandle;
  readonly #endOffset: number;
  #buffer = takeChunk();
  #other = takeChunk();
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

  /** Waits for the read in flight. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ahead.catch(() => {});
    giveBackChunk(this.#buffer);
    giveBackChunk(this.#other);
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
    reading.catch(() => {}); // seen by next()
    return reading;
  }
}

/** Writes bytes of guest memory to the addresses at which the process maps them. */
function writeMapped(memory: OpenFile, mappings: Mapping[], bytes: Buffer, offset: number): void {
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
