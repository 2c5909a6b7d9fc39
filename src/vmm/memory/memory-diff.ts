/**
 * Saving a stopped process's guest memory, and loading it into a new process. Only pages that differ from the base file are
 * moved, so the cost depends on the pages that the guest has written.
 *
 *      save:   /proc/<pid>/pagemap → own pages → /proc/<pid>/mem → diff file (diff-format.ts)
 *      load:   diff file → /proc/<pid>/mem of a QEMU that waits for its devices
 */
import { fstatSync, statSync } from "node:fs";
import { open, rm } from "node:fs/promises";
import type { Pieces, VmProcess } from "../vmm.ts";
import { dataOffset, type RunList, readDiff, readHeader } from "./diff-format.ts";
import { chunkBytes, DiffWriter, giveBackChunk, type SavedMemory, takeChunk } from "./diff-writer.ts";
import { memoryThreads } from "./memory-threads.ts";
import { copyPages, loadPages, writeMapped } from "./page-copy.ts";
import { type Mapping, mappingsOf, type OpenFile, openOf, ownPages, type PageRun, pageBytes } from "./pagemap.ts";

/**
 * 16 MiB, which takes 10 ms. Most pauses and resumes move less, and do not wait for another thread. A larger copy runs there,
 * because it would delay all other requests.
 */
const maxPagesHere = 4_096;
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
  #open: { mappings: Mapping[]; memory: OpenFile; base: string | null; writer: DiffWriter } | undefined;
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
    const base = statSync(this.#base).blocks === 0 ? null : this.#base;
    const writer = await DiffWriter.open(this.#path, base);
    this.#resources.defer(async () => {
      if (!this.#isComplete) await rm(this.#path, { force: true });
    });
    this.#open = { mappings, memory, base, writer: this.#resources.use(writer) };
  }

  /**
   * Copies all pages of a stopped process, once: the first ones here and further ones in another thread. The last pages may
   * still be in flight when it resolves.
   */
  async copy(): Promise<SavedMemory> {
    const { mappings, memory, base, writer } = this.#opened();
    const from = await copyPages(this.#process, mappings, memory, writer, { maxPages: maxPagesHere });
    if (from !== undefined) {
      const about = { process: this.#process, mappings, base, path: this.#path, from };
      await writer.continueElsewhere((state) => memoryThreads.save({ ...about, state }));
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

/**
 * Puts a diff's pages into a process that maps the same base; a large diff's in another thread. With `pieces`, rejects unless the
 * bytes that were loaded are those that were saved.
 */
export async function loadMemory(
  process: VmProcess,
  base: string,
  memoryBytes: number,
  path: string,
  pieces?: Pieces,
): Promise<void> {
  const mappings = mappingsOf(process.pid, base, memoryBytes);
  using memory = openOf(process, "mem", "r+");
  await using file = await open(path, "r");
  if (fstatSync(file.fd).size <= dataOffset + maxPagesHere * pageBytes) {
    const diff = await readDiff(file, memoryBytes);
    if (diff.dataPages + diff.zeroPages <= maxPagesHere) return await loadPages(memory, mappings, file, diff, pieces);
  }
  await memoryThreads.load({ process, mappings, memoryBytes, path, pieces });
}
