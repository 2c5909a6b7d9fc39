/**
 * Copies pages between a stopped process and a diff, on the thread that calls. Another process's memory is read and written
 * synchronously, since that never waits for a disk; files are read and written on the thread pool meanwhile.
 */
import { writeSync } from "node:fs";
import type { FileHandle } from "node:fs/promises";
import type { Pieces, VmProcess } from "../vmm.ts";
import { damaged, type ReadDiff } from "./diff-format.ts";
import { forEachPiece } from "./diff-reader.ts";
import type { DiffWriter } from "./diff-writer.ts";
import { type Mapping, type OpenFile, ownPages, pageBytes, readFully } from "./pagemap.ts";
import { PieceCheck } from "./piece-hashes.ts";

/** Longest time for which the event loop is blocked. */
const sliceMs = 3;

/**
 * Copies the process's own pages from page `from` on. When there are more than `maxPages`, it stops after these and returns the
 * page to continue from. The last pages may still be in flight when it resolves.
 */
export async function copyPages(
  process: VmProcess,
  mappings: Mapping[],
  memory: OpenFile,
  writer: DiffWriter,
  { from = 0, maxPages = Number.POSITIVE_INFINITY } = {},
): Promise<number | undefined> {
  const slices = new Slices();
  let left = maxPages;
  for await (const runs of ownPages(process, mappings, from)) {
    for (const run of runs) {
      for (let done = 0; done < run.count; ) {
        if (left <= 0) return run.page + done;
        const count = Math.min(run.count - done, writer.room());
        readFully(memory, writer.space(count), run.address + done * pageBytes);
        writer.take(run.page + done, count);
        done += count;
        left -= count;
        if (writer.isDue) await writer.flush();
        if (slices.isOver) await slices.yield();
      }
    }
  }
  return undefined;
}

/**
 * Puts a diff's pages into a process that maps the same base. With `pieces`, rejects unless the bytes that were loaded are those
 * that were saved.
 */
export async function loadPages(
  memory: OpenFile,
  mappings: Mapping[],
  file: FileHandle,
  diff: ReadDiff,
  pieces: Pieces | undefined,
): Promise<void> {
  const slices = new Slices();
  const write = (bytes: Buffer, page: number) => {
    writeMapped(memory, mappings, bytes, page * pageBytes);
    return slices.isOver ? slices.yield() : undefined;
  };
  await forEachPiece(file, diff, write, pieces && new PieceCheck(pieces, damaged));
}

/** Writes bytes of guest memory to the addresses at which the process maps them. */
export function writeMapped(memory: OpenFile, mappings: Mapping[], bytes: Buffer, offset: number): void {
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
