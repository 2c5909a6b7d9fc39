/**
 * The first part of getting in step with a guest: a HELLO with a nonce, and the search for the WELCOME that has it, in whatever an
 * earlier connection left in the pipe.
 */
import { randomBytes } from "node:crypto";
import { FrameType, headerBytes, writeHeader } from "./frames.ts";
import { nonceBytes } from "./protocol.ts";

export interface Hello {
  epoch: number;
  nonce: Buffer;
}

/**
 * Longest WELCOME that is accepted. A real one has some 100 bytes. A hostile one of many bytes, sent one by one,
 * would be scanned again with each of them.
 */
const maxWelcomeBytes = 1_024;

const nothing = Buffer.alloc(0);

export function newHello(): Hello {
  const random = randomBytes(nonceBytes + 2);
  return { nonce: random.subarray(0, nonceBytes), epoch: random.readUInt16LE(nonceBytes) || 1 };
}

/** Finds the WELCOME with a given nonce in a stream of arbitrary bytes. */
export class WelcomeScanner<T> {
  readonly #hello: Hello;
  readonly #decode: (payload: Buffer, nonce: Uint8Array) => T;
  #pending: Buffer = nothing;

  constructor(hello: Hello, decode: (payload: Buffer, nonce: Uint8Array) => T) {
    this.#hello = hello;
    this.#decode = decode;
  }

  /** Returns the WELCOME, and a copy of the bytes after it, once it is complete. */
  take(bytes: Uint8Array): { welcome: T; rest: Buffer } | undefined {
    const seen = Buffer.concat([this.#pending, bytes]);
    const { epoch, nonce } = this.#hello;
    for (let at = seen.indexOf(nonce); at >= 0; at = seen.indexOf(nonce, at + 1)) {
      const start = at - headerBytes;
      if (start < 0) continue;
      const length = seen.readUInt32LE(start + 8);
      if (length > maxWelcomeBytes) continue;
      const header = Buffer.alloc(headerBytes);
      writeHeader(header, 0, { type: FrameType.WELCOME, flags: 0, epoch, stream: 0, length });
      if (seen.compare(header, 0, headerBytes, start, at) !== 0) continue;
      if (seen.length < at + length) {
        this.#pending = seen.subarray(start);
        return undefined;
      }
      return { welcome: this.#decode(seen.subarray(at, at + length), nonce), rest: seen.subarray(at + length) };
    }
    this.#pending = seen.subarray(Math.max(0, seen.length - (headerBytes + nonceBytes - 1)));
    return undefined;
  }
}
