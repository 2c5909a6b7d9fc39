/**
 * The file format of a memory diff: the pages of a VM's memory that differ from its base file. Little-endian.
 *
 *      0       header, 64 bytes:
 *                0  "CAPSDIFF"     8  version u32 = 1     12  page size u32 = 4096
 *               16  memory, bytes u64                     24  runs u64
 *               32  pages with data u64                   40  pages of zeros u64
 *               48  offset of the index u64               56  zero
 *      4096    data: the pages with data, in order, without gaps
 *      then    index, 8 bytes a run: first page u32, pages u32; its top bit set: pages of zeros, without data
 *
 * Runs are in ascending order and do not overlap. The index comes last because it is known last. A diff may come from another
 * machine or a damaged disk, so everything is checked before it is used.
 */
import type { FileHandle } from "node:fs/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { pageBytes } from "./pagemap.ts";

export const dataOffset = pageBytes;
const magic = "CAPSDIFF";
const version = 1;
const runBytes = 8;
const zeroFlag = 0x8000_0000;

export interface DiffRun {
  page: number;
  count: number;
  isZero: boolean;
}

export interface Diff {
  memoryBytes: number;
  runs: RunList;
  dataPages: number;
  zeroPages: number;
}

export interface RunListState {
  words: Uint32Array<ArrayBuffer>;
  dataPages: number;
  zeroPages: number;
}

/** A diff that was read, with the bytes of the file around its data. */
export interface ReadDiff extends Diff {
  header: Buffer;
  index: Buffer;
}

/** Runs in the index's format, 8 bytes each: a fragmented memory has a million of them. */
export class RunList {
  #words = new Uint32Array(1_024);
  #length = 0;
  dataPages = 0;
  zeroPages = 0;

  get length(): number {
    return this.#length;
  }

  /** Adds a run, merged with the last one if it continues it. */
  add(page: number, count: number, isZero: boolean): void {
    if (isZero) this.zeroPages += count;
    else this.dataPages += count;
    const last = this.#length - 1;
    if (last >= 0) {
      const previous = this.at(last);
      if (previous.isZero === isZero && previous.page + previous.count === page) {
        this.#words[2 * last + 1]! += count;
        return;
      }
    }
    if (2 * this.#length === this.#words.length) {
      const larger = new Uint32Array(2 * this.#words.length);
      larger.set(this.#words);
      this.#words = larger;
    }
    this.#words[2 * this.#length] = page;
    this.#words[2 * this.#length + 1] = isZero ? (count | zeroFlag) >>> 0 : count;
    this.#length++;
  }

  at(index: number): DiffRun {
    const word = this.#words[2 * index + 1]!;
    return { page: this.#words[2 * index]!, count: word & ~zeroFlag, isZero: word >= zeroFlag };
  }

  *[Symbol.iterator](): Generator<DiffRun> {
    for (let index = 0; index < this.#length; index++) yield this.at(index);
  }

  bytes(): Uint8Array {
    return new Uint8Array(this.#words.buffer, 0, this.#length * runBytes);
  }

  /** A copy, as a plain object that can be sent to another thread. */
  state(): RunListState {
    const { dataPages, zeroPages } = this;
    return { words: this.#words.slice(0, 2 * this.#length), dataPages, zeroPages };
  }

  static of({ words, dataPages, zeroPages }: RunListState): RunList {
    const list = new RunList();
    if (words.length > 0) list.#words = words;
    list.#length = words.length / 2;
    [list.dataPages, list.zeroPages] = [dataPages, zeroPages];
    return list;
  }

  static from(bytes: Buffer): RunList {
    const list = new RunList();
    for (let at = 0; at < bytes.length; at += runBytes) {
      const word = bytes.readUInt32LE(at + 4);
      list.add(bytes.readUInt32LE(at), word & ~zeroFlag, word >= zeroFlag);
    }
    return list;
  }
}

/** The header, padded to the offset of the data. */
export function encodeHeader({ memoryBytes, runs }: Pick<Diff, "memoryBytes" | "runs">): Buffer {
  const header = Buffer.alloc(dataOffset);
  header.write(magic, 0, "latin1");
  header.writeUInt32LE(version, 8);
  header.writeUInt32LE(pageBytes, 12);
  header.writeBigUInt64LE(BigInt(memoryBytes), 16);
  header.writeBigUInt64LE(BigInt(runs.length), 24);
  header.writeBigUInt64LE(BigInt(runs.dataPages), 32);
  header.writeBigUInt64LE(BigInt(runs.zeroPages), 40);
  header.writeBigUInt64LE(BigInt(indexOffset(runs.dataPages)), 48);
  return header;
}

export function indexOffset(dataPages: number): number {
  return dataOffset + dataPages * pageBytes;
}

/** The decoded header. Throws CapsuleError("internal_error") when it contradicts itself. */
export async function readHeader(file: FileHandle) {
  const header = await readExactly(file, 0, dataOffset);
  const field = (at: number) => Number(header.readBigUInt64LE(at));
  const [memoryBytes, runCount, dataPages, zeroPages, indexAt] = [
    field(16),
    field(24),
    field(32),
    field(40),
    field(48),
  ];
  const pages = memoryBytes / pageBytes;
  if (header.toString("latin1", 0, 8) !== magic) throw damaged("it is no memory diff");
  if (header.readUInt32LE(8) !== version) throw damaged(`its version is ${header.readUInt32LE(8)}`);
  if (header.readUInt32LE(12) !== pageBytes) throw damaged(`its pages have ${header.readUInt32LE(12)} bytes`);
  if (dataPages + zeroPages > pages || runCount > dataPages + zeroPages) throw damaged("it has more runs than pages");
  return { memoryBytes, runCount, dataPages, zeroPages, indexAt, header };
}

/** Header and index of a diff for a memory of this size. Throws CapsuleError("internal_error") on anything unexpected. */
export async function readDiff(file: FileHandle, memoryBytes: number): Promise<ReadDiff> {
  const { memoryBytes: ofMemory, runCount, dataPages, zeroPages, indexAt, header } = await readHeader(file);
  const pages = memoryBytes / pageBytes;
  if (ofMemory !== memoryBytes) throw damaged(`it is for ${ofMemory} bytes of memory, not ${memoryBytes}`);
  if (indexAt !== indexOffset(dataPages)) throw damaged("its index is misplaced");
  const { size } = await file.stat();
  const length = indexAt + runCount * runBytes;
  if (size !== length) throw damaged(`it has ${size} bytes, not ${length}`);
  const index = await readExactly(file, indexAt, runCount * runBytes);
  const runs = RunList.from(index);
  let next = 0;
  for (const { page, count } of runs) {
    if (count === 0 || page < next || page + count > pages) throw damaged(`its run at page ${page} is out of place`);
    next = page + count;
  }
  if (runs.dataPages !== dataPages || runs.zeroPages !== zeroPages) throw damaged("its index and header disagree");
  return { memoryBytes, runs, dataPages, zeroPages, header, index };
}

async function readExactly(file: FileHandle, position: number, length: number): Promise<Buffer> {
  const bytes = Buffer.alloc(length);
  for (let got = 0; got < length; ) {
    const { bytesRead } = await file.read(bytes, got, length - got, position + got);
    if (bytesRead === 0) throw damaged("it ends too early");
    got += bytesRead;
  }
  return bytes;
}

export function damaged(why: string): CapsuleError {
  return new CapsuleError("internal_error", `The memory diff cannot be used: ${why}.`);
}
