/**
 * The frames of a WebSocket from another host to its client. When this host stops, the client gets a close frame behind the frame that is
 * under way, as a client of a WebSocket of this host does.
 */
const closeOpcode = 8;
/** Bits of a header's second byte: whether a mask follows, and the length or its form. */
const [maskBit, lengthBits] = [0x80, 0x7f];
const maskBytes = 4;

export function closeFrame(code: number, reason: string): Buffer {
  const payload = Buffer.alloc(2 + Buffer.byteLength(reason));
  payload.writeUInt16BE(code);
  payload.write(reason, 2);
  return Buffer.concat([Buffer.from([maskBit | closeOpcode, payload.length]), payload]);
}

export class SocketFrames {
  /** The header under way. */
  #header: number[] = [];
  /** Bytes of its payload that have not come yet. */
  #leftBytes = 0;
  #isLast = false;
  #close: Buffer | undefined;
  #isOver = false;

  /** The part of the chunk that the client is sent; nothing behind a close frame. */
  pass(chunk: Buffer): Buffer {
    if (this.#isOver) return chunk.subarray(0, 0);
    for (let at = 0; at < chunk.length; ) {
      at = this.#leftBytes > 0 ? this.#skip(chunk, at) : this.#read(chunk[at] as number, at);
      if (!this.#isBetween()) continue;
      if (this.#isLast) this.#isOver = true;
      else if (this.#close !== undefined) return Buffer.concat([chunk.subarray(0, at), this.#end(this.#close)]);
    }
    return chunk;
  }

  /** The bytes that the client is sent at once; none: they follow the frame under way, or the other host has sent a close frame. */
  close(frame: Buffer): Buffer {
    if (this.#isOver || this.#isLast) return Buffer.alloc(0);
    this.#close = frame;
    return this.#isBetween() ? this.#end(frame) : Buffer.alloc(0);
  }

  #end(frame: Buffer): Buffer {
    this.#isOver = true;
    return frame;
  }

  #isBetween(): boolean {
    return this.#leftBytes === 0 && this.#header.length === 0;
  }

  #skip(chunk: Buffer, at: number): number {
    const skipped = Math.min(this.#leftBytes, chunk.length - at);
    this.#leftBytes -= skipped;
    return at + skipped;
  }

  #read(byte: number, at: number): number {
    this.#header.push(byte);
    const [first = 0, second] = this.#header;
    if (second === undefined) return at + 1;
    const short = second & lengthBits;
    const lengthBytes = short === 126 ? 2 : short === 127 ? 8 : 0;
    const maskLength = (second & maskBit) === 0 ? 0 : maskBytes;
    if (this.#header.length === 2 + lengthBytes + maskLength) {
      const length = this.#header.slice(2, 2 + lengthBytes).reduce((sum, each) => sum * 256 + each, 0);
      this.#leftBytes = lengthBytes === 0 ? short : length;
      this.#isLast = (first & 0x0f) === closeOpcode;
      this.#header = [];
    }
    return at + 1;
  }
}
