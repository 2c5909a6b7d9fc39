/** Bytes put together from chunks of any size, at a cost that follows the bytes and not the number of chunks. */

const firstBytes = 1024;

export class GrowingBytes {
  #bytes: Buffer = Buffer.alloc(0);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** Copies the chunk. */
  add(chunk: Uint8Array): void {
    const neededBytes = this.#length + chunk.length;
    if (neededBytes > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(neededBytes, 2 * this.#bytes.length, firstBytes));
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    this.#bytes.set(chunk, this.#length);
    this.#length = neededBytes;
  }

  /** Hands everything over and begins anew. */
  take(): Buffer {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = Buffer.alloc(0);
    this.#length = 0;
    return taken;
  }
}
