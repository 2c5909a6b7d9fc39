/**
 * Records: the fields of a frame's payload in a fixed order, followed by one end mark. The writer encodes host
 * requests. The reader decodes bytes of the guest and checks every length against the bytes present.
 */
import { isUtf8 } from "node:buffer";
import { bytesOfName, hasStandIns, nameFromBytes } from "../wire/file-names.ts";

/** The guest violated the protocol. The channel or handshake that reads from it closes the connection. */
export class ProtocolError extends Error {
  override readonly name: string = "ProtocolError";
}

/** The bytes end inside a record. In a listing that spans frames, the rest may follow. */
export class ShortRecord extends ProtocolError {
  override readonly name = "ShortRecord";
}

export const endMark = 0x7e;
/** The first byte of the characters that stand for bytes, and of few others. */
const standInByte = 0xf4;

export class RecordWriter {
  #bytes: Buffer;
  #length: number;

  /** Leaves `reserved` bytes at the front for a header that is written when the record is complete. */
  constructor(reserved = 0) {
    this.#bytes = Buffer.allocUnsafe(reserved + 500);
    this.#length = reserved;
  }

  get length(): number {
    return this.#length;
  }

  u8(value: number): this {
    const at = this.#grow(1);
    this.#bytes[at] = value;
    return this;
  }

  u16(value: number): this {
    const at = this.#grow(2);
    this.#bytes.writeUInt16LE(value, at);
    return this;
  }

  u32(value: number): this {
    const at = this.#grow(4);
    this.#bytes.writeUInt32LE(value, at);
    return this;
  }

  u64(value: bigint): this {
    const at = this.#grow(8);
    this.#bytes.writeBigUInt64LE(value, at);
    return this;
  }

  /** Bytes without a length field. */
  raw(bytes: Uint8Array): this {
    const at = this.#grow(bytes.length);
    this.#bytes.set(bytes, at);
    return this;
  }

  bytes(bytes: Uint8Array): this {
    return this.u32(bytes.length).raw(bytes);
  }

  str(text: string): this {
    const length = Buffer.byteLength(text);
    this.u32(length);
    const at = this.#grow(length);
    this.#bytes.write(text, at, length);
    return this;
  }

  /** A path as the API has it, see wire/file-names.ts. */
  path(text: string): this {
    return hasStandIns(text) ? this.bytes(bytesOfName(text)) : this.str(text);
  }

  paths(texts: readonly string[]): this {
    this.u32(texts.length);
    for (const text of texts) this.path(text);
    return this;
  }

  optionalPath(text: string | undefined): this {
    return text === undefined ? this.u8(0) : this.u8(1).path(text);
  }

  strs(texts: readonly string[]): this {
    this.u32(texts.length);
    for (const text of texts) this.str(text);
    return this;
  }

  map(texts: Readonly<Record<string, string>>): this {
    const pairs = Object.entries(texts);
    this.u32(pairs.length);
    for (const [key, value] of pairs) this.str(key).str(value);
    return this;
  }

  optionalStr(text: string | undefined): this {
    return text === undefined ? this.u8(0) : this.u8(1).str(text);
  }

  /** Appends the end mark and returns everything, the reserved bytes first. The writer must not be used afterwards. */
  finish(): Buffer {
    return this.u8(endMark).bare();
  }

  /** The same without an end mark, for an item of a listing. */
  bare(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  #grow(count: number): number {
    const at = this.#length;
    this.#length = at + count;
    if (this.#length > this.#bytes.length) {
      const larger = Buffer.allocUnsafe(Math.max(this.#length, 2 * this.#bytes.length));
      this.#bytes.copy(larger, 0, 0, at);
      this.#bytes = larger;
    }
    return at;
  }
}

export class RecordReader {
  readonly #bytes: Buffer;
  #at: number;

  constructor(bytes: Buffer, start = 0) {
    this.#bytes = bytes;
    this.#at = start;
  }

  /** Offset of the next field. */
  get position(): number {
    return this.#at;
  }

  u8(): number {
    return this.#bytes[this.#take(1)]!;
  }

  u16(): number {
    return this.#bytes.readUInt16LE(this.#take(2));
  }

  u32(): number {
    return this.#bytes.readUInt32LE(this.#take(4));
  }

  i32(): number {
    return this.#bytes.readInt32LE(this.#take(4));
  }

  /** A u64 as a number, at most Number.MAX_SAFE_INTEGER. */
  u64(): number {
    const value = this.#bytes.readBigUInt64LE(this.#take(8));
    return value > Number.MAX_SAFE_INTEGER ? Number.MAX_SAFE_INTEGER : Number(value);
  }

  i64(): number {
    const value = Number(this.#bytes.readBigInt64LE(this.#take(8)));
    return Math.min(Math.max(value, Number.MIN_SAFE_INTEGER), Number.MAX_SAFE_INTEGER);
  }

  /** A view, not a copy. */
  raw(length: number): Buffer {
    const at = this.#take(length);
    return this.#bytes.subarray(at, at + length);
  }

  bytes(): Buffer {
    return this.raw(this.u32());
  }

  /** U+FFFD stands for bytes that are not UTF-8. */
  str(): string {
    const length = this.u32();
    const at = this.#take(length);
    return this.#bytes.toString("utf8", at, at + length);
  }

  /** A name or path as the API has it, see wire/file-names.ts. */
  path(maxBytes = Number.POSITIVE_INFINITY): string {
    const length = this.u32();
    if (length > maxBytes) throw new ProtocolError(`a path of ${length} bytes`);
    const bytes = this.raw(length);
    const isPlain = isUtf8(bytes) && !bytes.includes(standInByte);
    return isPlain ? bytes.toString() : nameFromBytes(bytes);
  }

  optionalPath(maxBytes?: number): string | undefined {
    return this.#isPresent() ? this.path(maxBytes) : undefined;
  }

  strs(): string[] {
    const count = this.u32();
    const texts: string[] = [];
    // Each item takes at least 4 bytes, so a false count fails at the end of the bytes and not by exhausting memory.
    for (let i = 0; i < count; i++) texts.push(this.str());
    return texts;
  }

  optionalStr(): string | undefined {
    return this.#isPresent() ? this.str() : undefined;
  }

  #isPresent(): boolean {
    const present = this.u8();
    if (present > 1) throw new ProtocolError(`an optional field is marked ${present}`);
    return present === 1;
  }

  /** A list of u16. */
  u16s(): number[] {
    const count = this.u32();
    const values: number[] = [];
    for (let i = 0; i < count; i++) values.push(this.u16());
    return values;
  }

  /** The end mark is the next byte and the last one. */
  get isAtEndMark(): boolean {
    return this.#at === this.#bytes.length - 1 && this.#bytes[this.#at] === endMark;
  }

  /** The end mark must be the next byte and the last one. */
  finish(): void {
    if (!this.isAtEndMark) {
      throw new ProtocolError("a record does not end at its end mark");
    }
  }

  #take(count: number): number {
    const at = this.#at;
    if (count > this.#bytes.length - at) throw new ShortRecord("a record is incomplete");
    this.#at = at + count;
    return at;
  }
}
