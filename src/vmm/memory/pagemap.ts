/**
 * Which pages of its memory a VM has written. QEMU maps the base file privately: a page that the guest has written is an
 * anonymous copy, every other one belongs to the file. /proc/<pid>/pagemap distinguishes them. Reading it costs about 1 ms
 * per 256 MiB of guest memory.
 */
import { closeSync, openSync, readFileSync, readSync, statSync } from "node:fs";
import { CapsuleError } from "../../wire/errors.ts";
import { isAlive } from "../process.ts";
import type { VmProcess } from "../vmm.ts";

export const pageBytes = 4_096;

/** A part of the process's address space that maps a part of the base file. */
export interface Mapping {
  address: number;
  /** Offset in the base file. */
  offset: number;
  bytes: number;
}

/** Consecutive pages, by position in the base file and address in the process. */
export interface PageRun {
  page: number;
  count: number;
  address: number;
}

/** A file opened synchronously, for files whose opening does not wait for a disk. */
export class OpenFile implements Disposable {
  readonly fd: number;

  constructor(path: string, flags: "r" | "r+") {
    this.fd = openSync(path, flags);
  }

  [Symbol.dispose](): void {
    closeSync(this.fd);
  }
}

/**
 * Opens a file of a process in /proc. Throws when the process has ended, because another one may have its pid: while its
 * start time is read after the opening, the file is still that of this process.
 */
export function openOf(process: VmProcess, name: "mem" | "pagemap", flags: "r" | "r+"): OpenFile {
  const file = new OpenFile(`/proc/${process.pid}/${name}`, flags);
  if (isAlive(process)) return file;
  file[Symbol.dispose]();
  throw new CapsuleError("internal_error", `process ${process.pid} has ended`);
}

export function readFully(file: OpenFile, into: Buffer, position: number): void {
  for (let got = 0; got < into.length; ) {
    const bytesRead = readSync(file.fd, into, got, into.length - got, position + got);
    if (bytesRead === 0) throw new Error("memory ended early");
    got += bytesRead;
  }
}

/** Most bytes that a VM's memory diff can have now: the anonymous memory of its process. 0 when the process is gone. */
export function dirtyBytes({ process }: { process: VmProcess }): number {
  try {
    const status = readFileSync(`/proc/${process.pid}/status`, "utf8");
    return Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1_024;
  } catch {
    return 0;
  }
}

const entryBytes = 8;
/** Pages read at a time: 512 KiB of pagemap, 256 MiB of memory, about a millisecond. */
const pagesPerRead = 65_536;
/** Shared by all callers; safe because it is filled and read synchronously. */
const entries = new Uint32Array((pagesPerRead * entryBytes) / 4);
/** Entries that are compared as a block before they are examined one by one. */
const pagesPerBlock = 512;

/** Where a process has mapped the base file, in the file's order. Throws unless all of `bytes` is there, once. */
export function mappingsOf(pid: number, base: string, bytes: number): Mapping[] {
  const maps = readFileSync(`/proc/${pid}/maps`, "utf8");
  const { ino, dev } = statSync(base);
  const mappings = parseMaps(maps, ino, deviceName(dev), base).sort((a, b) => a.offset - b.offset);
  let [covered, counted] = [0, 0];
  while (mappings[counted]?.offset === covered) covered += mappings[counted++]!.bytes;
  if (covered !== bytes || counted === 0) {
    throw new CapsuleError("internal_error", `Process ${pid} maps ${covered} bytes of ${base} instead of ${bytes}.`);
  }
  // Only a compromised QEMU does. It would be searched as often as it is mapped, whatever the size of the mappings.
  if (counted < mappings.length) {
    throw new CapsuleError("internal_error", `Process ${pid} maps parts of ${base} more than once.`);
  }
  return mappings;
}

/** Lines of /proc/<pid>/maps that belong to a file: "7f00-7f10 rw-p 00000000 fe:00 1234   /path". */
export function parseMaps(maps: string, inode: number, device: string, path: string): Mapping[] {
  const mappings: Mapping[] = [];
  const mark = Number.isSafeInteger(inode) ? ` ${inode} ` : " "; // stat rounds a larger one
  for (const line of maps.split("\n")) {
    if (!line.includes(mark)) continue; // parses only a few of about 300 lines
    const parts = /^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+)\s*(.*)$/.exec(line);
    if (parts === null || Number(parts[5]) !== inode) continue;
    // Some file systems show another device here than stat does; then the path decides.
    if (parts[4] !== device && parts[6] !== path) continue;
    const address = Number.parseInt(parts[1]!, 16);
    mappings.push({
      address,
      offset: Number.parseInt(parts[3]!, 16),
      bytes: Number.parseInt(parts[2]!, 16) - address,
    });
  }
  return mappings;
}

/** st_dev as /proc/<pid>/maps writes it. */
function deviceName(dev: number): string {
  const minor = (dev & 0xff) | ((dev >>> 12) & 0xfff00);
  const major = (dev >>> 8) & 0xfff;
  return `${major.toString(16).padStart(2, "0")}:${minor.toString(16).padStart(2, "0")}`;
}

/**
 * The pages that the process has written, from page `from` on, in the base file's order, in runs within one mapping; those of
 * 256 MiB at a time.
 */
export async function* ownPages(process: VmProcess, mappings: Mapping[], from = 0): AsyncGenerator<PageRun[]> {
  using pagemap = openOf(process, "pagemap", "r");
  for (const { address, offset, bytes } of mappings) {
    const pages = bytes / pageBytes;
    for (let start = Math.max(0, from - offset / pageBytes); start < pages; start += pagesPerRead) {
      const count = Math.min(pagesPerRead, pages - start);
      const position = (address / pageBytes + start) * entryBytes;
      const got = readSync(pagemap.fd, entries, 0, count * entryBytes, position);
      if (got !== count * entryBytes) throw new Error(`pagemap of process ${process.pid} ended early`);
      yield runsOf(entries, count).map(({ page, count }) => ({
        page: offset / pageBytes + start + page,
        count,
        address: address + (start + page) * pageBytes,
      }));
      await new Promise(setImmediate);
    }
  }
}

/** Runs of own pages in raw pagemap entries (64 bits each, little-endian; the upper half decides). */
export function runsOf(entries: Uint32Array, count: number): { page: number; count: number }[] {
  const bytes = Buffer.from(entries.buffer, entries.byteOffset, count * entryBytes);
  const runs: { page: number; count: number }[] = [];
  let first = -1;
  const endAt = (page: number) => {
    if (first !== -1) runs.push({ page: first, count: page - first });
    first = -1;
  };
  for (let start = 0; start < count; start += pagesPerBlock) {
    const end = Math.min(start + pagesPerBlock, count);
    const examinedTo = areAlike(bytes, start * entryBytes, end * entryBytes) ? start + 1 : end;
    for (let page = start; page < examinedTo; page++) {
      if (!isOwn(entries[2 * page + 1]!)) endAt(page);
      else if (first === -1) first = page;
    }
  }
  endAt(count);
  return runs;
}

/** True for most blocks: untouched pages. */
function areAlike(bytes: Buffer, start: number, end: number): boolean {
  return bytes.compare(bytes, start, end - entryBytes, start + entryBytes, end) === 0;
}

/** Present (bit 63) and not the file's (bit 61), or swapped out (bit 62), which only own pages are. */
function isOwn(upperHalf: number): boolean {
  const bits = upperHalf >>> 29;
  return bits === 0b100 || (bits & 0b010) !== 0;
}
