/**
 * Bytes of one connection to outside. One write is under way at a time, and what comes meanwhile is joined, so that memory is
 * proportional to the bytes and not to the number of the guest's frames.
 */
import { SendQueue } from "../agent/send-queue.ts";
import type { Upstream } from "./dialler.ts";

const writtenAtOnce = 65_536;

export class Outflow {
  readonly #upstream: Pick<Upstream, "write" | "end">;
  readonly #taken: (bytes: number) => void;
  readonly #queue = new SendQueue();
  #writingBytes = 0;
  #isEnding = false;

  /** `taken` is called with the number of bytes that the kernel has. */
  constructor(upstream: Pick<Upstream, "write" | "end">, taken: (bytes: number) => void) {
    this.#upstream = upstream;
    this.#taken = taken;
  }

  /** Bytes that the kernel has not taken. */
  get unwrittenBytes(): number {
    return this.#writingBytes + this.#queue.length;
  }

  /** The bytes must not change afterwards. */
  write(bytes: Uint8Array): void {
    this.#queue.add(bytes);
    this.#next();
  }

  /** FIN after the bytes. */
  end(): void {
    if (this.#isEnding) return;
    this.#isEnding = true;
    if (this.unwrittenBytes === 0) this.#upstream.end();
  }

  #next(): void {
    if (this.#writingBytes > 0 || this.#queue.length === 0) return;
    const bytes = this.#queue.take(writtenAtOnce);
    this.#writingBytes = bytes.length;
    this.#upstream.write(bytes, () => {
      this.#writingBytes = 0;
      this.#next();
      if (this.#isEnding && this.unwrittenBytes === 0) this.#upstream.end();
      this.#taken(bytes.length);
    });
  }
}
