/**
 * Bytes put together from chunks of any size, at a cost that follows the bytes and not the number of chunks, and a little of
 * it at a time: what was gathered is not copied again before it is taken.
 */

const firstBytes = 1024;
const longestPieceBytes = 256 * 1024;
const nothing = Buffer.alloc(0);

export class ChunkBuffer {
  /** Full ones. */
  #pieces: Buffer[] = [];
  #last = nothing;
  /** Of the last. */
  #filled = 0;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** Copies the chunk. */
  add(chunk: Uint8Array): void {
    for (let done = 0; done < chunk.length; ) {
      if (this.#filled === this.#last.length) this.#begin(chunk.length - done);
      const part = chunk.subarray(done, done + this.#last.length - this.#filled);
      this.#last.set(part, this.#filled);
      this.#filled += part.length;
      done += part.length;
    }
    this.#length += chunk.length;
  }

  /** Hands everything over and begins anew. */
  take(): Buffer {
    if (this.#length === 0) return nothing;
    const last = this.#last.subarray(0, this.#filled);
    const taken = this.#pieces.length === 0 ? last : Buffer.concat([...this.#pieces, last], this.#length);
    this.#pieces = [];
    this.#last = nothing;
    this.#filled = 0;
    this.#length = 0;
    return taken;
  }

  /** As long as all there is, so that there are few. */
  #begin(neededBytes: number): void {
    if (this.#filled > 0) this.#pieces.push(this.#last);
    const bytes = Math.min(longestPieceBytes, Math.max(neededBytes, this.#length, firstBytes));
    this.#last = Buffer.allocUnsafeSlow(bytes);
    this.#filled = 0;
  }
}
