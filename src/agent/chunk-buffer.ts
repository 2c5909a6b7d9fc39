/**
 * Collects chunks of any size. Memory is proportional to the bytes and not to the number of chunks, and a byte is
 * copied twice at most: when it is added, and when everything is taken.
 */

const minBlockBytes = 1024;
const maxBlockBytes = 256 * 1024;
const nothing = Buffer.alloc(0);

export class ChunkBuffer {
  /** Full blocks. */
  #blocks: Buffer[] = [];
  #last = nothing;
  /** Used bytes of the last block. */
  #filled = 0;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** Copies the chunk. */
  add(chunk: Uint8Array): void {
    for (let done = 0; done < chunk.length; ) {
      if (this.#filled === this.#last.length) this.#addBlock(chunk.length - done);
      const part = chunk.subarray(done, done + this.#last.length - this.#filled);
      this.#last.set(part, this.#filled);
      this.#filled += part.length;
      done += part.length;
    }
    this.#length += chunk.length;
  }

  /** Returns all bytes and empties the buffer. */
  take(): Buffer {
    const length = this.#length;
    const blocks = this.takeBlocks();
    return blocks.length === 1 ? (blocks[0] as Buffer) : Buffer.concat(blocks, length);
  }

  /** As `take`, without a copy: in blocks of at most 256 KiB. */
  takeBlocks(): Buffer[] {
    const taken = this.#filled > 0 ? [...this.#blocks, this.#last.subarray(0, this.#filled)] : this.#blocks;
    this.#blocks = [];
    this.#last = nothing;
    this.#filled = 0;
    this.#length = 0;
    return taken;
  }

  /** Empties the buffer and frees its memory now instead of at a later garbage collection. */
  discard(): void {
    const blocks = [...this.#blocks, this.#last].filter((block) => block !== nothing);
    this.takeBlocks();
    for (const { buffer } of blocks) (buffer as ArrayBuffer).transfer(0);
  }

  /** Each block is as long as all before it, up to 256 KiB, so that there are few. */
  #addBlock(neededBytes: number): void {
    if (this.#filled > 0) this.#blocks.push(this.#last);
    const bytes = Math.min(maxBlockBytes, Math.max(neededBytes, this.#length, minBlockBytes));
    this.#last = Buffer.allocUnsafeSlow(bytes);
    this.#filled = 0;
  }
}
