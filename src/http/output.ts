/** A foreground command's output: kept in memory up to a limit, and encoded as JSON piece by piece. */
import { isUtf8 } from "node:buffer";
import { ChunkBuffer } from "../agent/chunk-buffer.ts";
import type { AnswerCharge } from "./access/answer-budget.ts";

/** Bytes of output that become one piece; a multiple of 3, so that base64 needs padding at the end only. */
const sliceBytes = 3 * 8 * 1024;

export class Output {
  readonly #charge: AnswerCharge;
  readonly #stdout: KeptBytes;
  readonly #stderr: KeptBytes;

  /** `maxBytes` is for each stream. */
  constructor(maxBytes: number, charge: AnswerCharge) {
    this.#charge = charge;
    this.#stdout = new KeptBytes(maxBytes);
    this.#stderr = new KeptBytes(maxBytes);
  }

  /** The length of both streams. */
  get bytes(): number {
    return this.#stdout.length + this.#stderr.length;
  }

  /** Copies what it keeps. Throws CapsuleError("no_capacity"). */
  add(channel: "stdout" | "stderr", chunk: Uint8Array): void {
    this.#charge.add((channel === "stdout" ? this.#stdout : this.#stderr).add(chunk));
  }

  /**
   * Ends the output. Both streams are base64 if either is not UTF-8. A character that the limit cut in two is dropped; so is
   * one that a killed command did not complete, `isPartial`, if all else is UTF-8. Throws CapsuleError("no_capacity").
   */
  encode(isPartial = false): EncodedOutput {
    const truncated = this.#stdout.isCut || this.#stderr.isCut;
    const taken = [this.#stdout, this.#stderr].map((each) => each.take());
    const trimmed = taken.map(withoutTail);
    const kept = isPartial && trimmed.every(({ bytes }) => isUtf8(bytes)) ? trimmed : taken;
    const encoding = kept.every(({ bytes }) => isUtf8(bytes)) ? "utf-8" : "base64";
    const [stdout, stderr] = kept.map(({ bytes, textBytes }) => new EncodedText(bytes, textBytes, encoding));
    const output = { stdout: stdout as EncodedText, stderr: stderr as EncodedText, encoding, truncated } as const;
    const chargedBytes = kept.reduce((sum, { textBytes }) => sum + textBytes, 0);
    this.#charge.add(Math.max(0, output.stdout.sentBytes + output.stderr.sentBytes - chargedBytes));
    return output;
  }

  /** Gives the bytes back and keeps no further output. */
  release(): void {
    for (const each of [this.#stdout, this.#stderr]) {
      each.take();
      each.isCut = true;
    }
    this.#charge.release();
  }
}

export interface EncodedOutput {
  stdout: EncodedText;
  stderr: EncodedText;
  encoding: "utf-8" | "base64";
  truncated: boolean;
}

/** Bytes as a JSON string, encoded when they are sent. */
export class EncodedText {
  /** Without the quotes. */
  readonly sentBytes: number;
  readonly #bytes: Buffer;
  readonly #encoding: "utf-8" | "base64";

  /** `textBytes`: the length as UTF-8 text. */
  constructor(bytes: Buffer, textBytes: number, encoding: "utf-8" | "base64") {
    this.#bytes = bytes;
    this.#encoding = encoding;
    this.sentBytes = encoding === "utf-8" ? textBytes : 4 * Math.ceil(bytes.length / 3);
  }

  *pieces(): Generator<Buffer> {
    for (let from = 0; from < this.#bytes.length; ) {
      const slice = this.#bytes.subarray(from, from + sliceBytes);
      if (this.#encoding === "base64") {
        yield Buffer.from(slice.toString("base64"), "latin1");
        from += slice.length;
      } else {
        const whole = slice.subarray(0, slice.length - incompleteTail(slice));
        yield Buffer.from(JSON.stringify(whole.toString()).slice(1, -1));
        from += whole.length;
      }
    }
  }
}

class KeptBytes {
  isCut = false;
  readonly #maxBytes: number;
  readonly #bytes = new ChunkBuffer();
  #textBytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get length(): number {
    return this.#bytes.length;
  }

  /** Returns how many bytes the kept ones add to a JSON string. */
  add(chunk: Uint8Array): number {
    if (this.isCut) return 0;
    const kept = chunk.subarray(0, this.#maxBytes - this.#bytes.length);
    this.isCut = kept.length < chunk.length;
    this.#bytes.add(kept);
    const textBytes = escapedBytes(kept);
    this.#textBytes += textBytes;
    return textBytes;
  }

  take(): TakenBytes {
    const all = { bytes: this.#bytes.take(), textBytes: this.#textBytes };
    return this.isCut ? withoutTail(all) : all;
  }
}

interface TakenBytes {
  bytes: Buffer;
  /** Length in a JSON string, if they are UTF-8. */
  textBytes: number;
}

function withoutTail({ bytes, textBytes }: TakenBytes): TakenBytes {
  const tailBytes = incompleteTail(bytes);
  return { bytes: bytes.subarray(0, bytes.length - tailBytes), textBytes: textBytes - tailBytes };
}

/** By byte: its length in a JSON string. */
const escapedLengths = new Uint8Array(256).map(
  (_, byte) => Buffer.byteLength(JSON.stringify(byte < 0x80 ? String.fromCharCode(byte) : "x")) - 2,
);

/** Length of UTF-8 text in a JSON string. */
export function escapedBytes(text: Uint8Array): number {
  let sum = 0;
  for (let at = 0; at < text.length; at++) sum += escapedLengths[text[at] as number] as number;
  return sum;
}

/** Number of bytes at the end that begin an incomplete UTF-8 character: 0 to 3. */
export function incompleteTail(bytes: Uint8Array): number {
  const end = bytes.length;
  for (let back = 1; back <= Math.min(3, end); back++) {
    const byte = bytes[end - back] as number;
    if (byte < 0x80) return 0;
    if (byte >= 0xc0) return back < lengthOf(byte) ? back : 0;
  }
  return 0;
}

function lengthOf(leadByte: number): number {
  if (leadByte >= 0xf0) return leadByte <= 0xf4 ? 4 : 0;
  return leadByte >= 0xe0 ? 3 : 2;
}
