/**
 * The tar of files/archive, read as it arrives. A capsule sends it, so each length and number is checked; names are passed
 * on as they are, for the caller to check. A library would take names as text, and names are bytes here.
 */
import { nameFromBytes } from "../sdk/sdk.ts";
import { Failure } from "./failures.ts";

export interface TarMember {
  /** In the text form of names. */
  name: string;
  kind: "file" | "directory" | "symlink" | "hardlink" | "other";
  mode: number;
  mtimeSec: number;
  /** A link's target. */
  target: string;
  /** A file's length with its holes. */
  size: number;
  /** A file's content: pieces with their offsets. To be read before the next member. */
  content: AsyncIterable<{ offset: number; bytes: Uint8Array }>;
}

const blockBytes = 512;
/** The limit of one member, its pax records and long names together. */
const extensionsMaxBytes = 1024 * 1024;
const extentsMax = 65_536;
const sparseKeys = ["major", "name", "realsize"].map((key) => `GNU.sparse.${key}`);
/** The pax records that are used. */
const keysKept = new Set(["path", "linkpath", "size", "mtime", ...sparseKeys]);
const kinds: Record<string, TarMember["kind"]> = {
  ...{ "0": "file", "\0": "file", "1": "hardlink", "2": "symlink", "5": "directory" },
};

export async function* membersOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<TarMember> {
  const input = new Input(chunks);
  let records = new Map<string, Buffer>();
  let extensionsBytes = 0;
  for (;;) {
    const block = await input.take(blockBytes);
    if (block.every((byte) => byte === 0)) {
      await input.drain();
      return;
    }
    checkSum(block);
    const [kind, size] = [block.toString("latin1", 156, 157), sizeIn(block, records)];
    if (kind === "x" || kind === "L" || kind === "K") {
      extensionsBytes += size;
      if (extensionsBytes > extensionsMaxBytes)
        throw damaged(`a member has more than ${extensionsMaxBytes} bytes of names and attributes`);
      const content = await input.take(size);
      await input.take(-size & (blockBytes - 1));
      if (kind === "x") readRecords(content, records);
      else records.set(kind === "L" ? "path" : "linkpath", textIn(content, 0, content.length));
      continue;
    }
    const member = new Content(input, size);
    yield await memberOf(block, kind, records, member);
    await member.skip();
    records = new Map();
    extensionsBytes = 0;
  }
}

async function memberOf(
  block: Buffer,
  kind: string,
  records: Map<string, Buffer>,
  content: Content,
): Promise<TarMember> {
  const isSparse = records.has("GNU.sparse.major");
  if (isSparse) await content.readMap();
  const name = records.get("GNU.sparse.name") ?? records.get("path") ?? textIn(block, 0, 100);
  return {
    name: nameFromBytes(name),
    kind: kinds[kind] ?? "other",
    mode: octalIn(block, 100, 108),
    mtimeSec: secondsOf(records.get("mtime")) ?? octalIn(block, 136, 148),
    target: nameFromBytes(records.get("linkpath") ?? textIn(block, 157, 257)),
    size: isSparse ? numberOf(records.get("GNU.sparse.realsize")) : content.size,
    content: content.pieces(),
  };
}

/** The bytes of one member, and where they belong in its file. */
class Content {
  readonly size: number;
  readonly #input: Input;
  #left: number;
  #extents: { offset: number; length: number }[];

  constructor(input: Input, size: number) {
    this.#input = input;
    this.size = size;
    this.#left = size;
    this.#extents = [{ offset: 0, length: size }];
  }

  /** GNU's format 1.0: the number of extents, then their offsets and lengths, a line each, up to the end of a block. */
  async readMap(): Promise<void> {
    const numbers: number[] = [];
    let line = "";
    while (numbers.length === 0 || numbers.length < 1 + 2 * numbers[0]!) {
      for (const byte of await this.#take(blockBytes)) {
        if (byte !== 10) line += String.fromCharCode(byte);
        else if (numbers.length === 0 || numbers.length < 1 + 2 * numbers[0]!) {
          numbers.push(numberOf(Buffer.from(line)));
          line = "";
        }
      }
      if (line.length > blockBytes || numbers[0]! > extentsMax) throw damaged("a sparse file's map cannot be read");
    }
    const pairs = numbers.slice(1);
    this.#extents = pairs.flatMap((offset, at) => (at % 2 === 0 ? [{ offset, length: pairs[at + 1]! }] : []));
  }

  async *pieces(): AsyncGenerator<{ offset: number; bytes: Uint8Array }> {
    for (const extent of this.#extents) {
      let { offset, length } = extent;
      while (length > 0) {
        if (this.#left === 0) throw damaged("a file is shorter than its map");
        const bytes = await this.#input.some(Math.min(length, this.#left));
        this.#left -= bytes.length;
        yield { offset, bytes };
        offset += bytes.length;
        length -= bytes.length;
      }
    }
  }

  /** To the next member. */
  async skip(): Promise<void> {
    while (this.#left > 0) this.#left -= (await this.#input.some(this.#left)).length;
    await this.#input.take(-this.size & (blockBytes - 1));
  }

  async #take(count: number): Promise<Buffer> {
    if (this.#left < count) throw damaged("a sparse file's map is cut");
    this.#left -= count;
    return await this.#input.take(count);
  }
}

class Input {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Exactly so many bytes. */
  async take(count: number): Promise<Buffer> {
    if (this.#rest.length >= count) return this.#cut(count);
    const parts: Buffer[] = [];
    for (let left = count; left > 0; ) {
      const part = await this.some(left);
      parts.push(part);
      left -= part.length;
    }
    return Buffer.concat(parts, count);
  }

  /** At least one byte, at most so many. */
  async some(count: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const next = await this.#chunks.next();
      if (next.done) throw damaged("it is cut");
      this.#rest = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    }
    return this.#cut(Math.min(count, this.#rest.length));
  }

  async drain(): Promise<void> {
    while (!(await this.#chunks.next()).done);
  }

  #cut(count: number): Buffer {
    const head = this.#rest.subarray(0, count);
    this.#rest = this.#rest.subarray(count);
    return head;
  }
}

function readRecords(bytes: Buffer, records: Map<string, Buffer>): void {
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(" ", at);
    const length = space < 0 ? 0 : numberOf(bytes.subarray(at, space));
    const equals = bytes.indexOf("=", space);
    const end = at + length;
    if (length === 0 || end > bytes.length || equals < 0 || equals >= end) throw damaged("a pax record is malformed");
    const key = bytes.toString("latin1", space + 1, equals);
    if (keysKept.has(key)) records.set(key, bytes.subarray(equals + 1, end - 1));
    at = end;
  }
}

function checkSum(block: Buffer): void {
  const sum = block.reduce((total, byte, at) => total + (at >= 148 && at < 156 ? 32 : byte), 0);
  if (octalIn(block, 148, 156) !== sum) throw damaged("a header's checksum is wrong");
}

function sizeIn(block: Buffer, records: Map<string, Buffer>): number {
  const given = records.get("size");
  return given === undefined ? octalIn(block, 124, 136) : numberOf(given);
}

function octalIn(block: Buffer, start: number, end: number): number {
  const digits = /^ *([0-7]*)[ \0]*$/.exec(block.toString("latin1", start, end))?.[1];
  if (digits === undefined) throw damaged("a number is malformed");
  return Number.parseInt(digits || "0", 8);
}

/** Undefined: not given, or no time that a file can have. */
function secondsOf(value: Buffer | undefined): number | undefined {
  const text = value?.toString("latin1") ?? "";
  return /^-?\d{1,12}(\.\d*)?$/.test(text) ? Number.parseFloat(text) : undefined;
}

function numberOf(digits: Buffer | undefined): number {
  const number = Number(digits?.toString("latin1"));
  if (!/^\d{1,16}$/.test(digits?.toString("latin1") ?? "") || !Number.isSafeInteger(number))
    throw damaged("a number is malformed");
  return number;
}

function textIn(block: Buffer, start: number, end: number): Buffer {
  const field = block.subarray(start, end);
  const length = field.indexOf(0);
  return length < 0 ? field : field.subarray(0, length);
}

function damaged(what: string): Failure {
  return new Failure(`the capsule's archive cannot be used: ${what}`);
}
