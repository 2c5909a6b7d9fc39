/** The bytes of a body that arrives in chunks, in one piece: chunks of one byte each would take 200 times their memory in a list. */
import type { AnswerCharge } from "./access/answer-budget.ts";
import { pieceMinBytes } from "./access/receive-budget.ts";

/** The least buffer for more than one chunk; a lone chunk is kept as it is. */
const firstCapacityBytes = 4 * 1024;

export class BodyBuffer {
  readonly #charge: Pick<AnswerCharge, "add">;
  #buffer: Buffer = Buffer.alloc(0);
  #length = 0;

  /** `charge`: for the memory that is held, which is up to twice the bytes. */
  constructor(charge: Pick<AnswerCharge, "add">) {
    this.#charge = charge;
  }

  /** Throws as `add` of the charge does. */
  add(chunk: Buffer): void {
    const length = this.#length + chunk.length;
    if (this.#length === 0) {
      this.#charge.add(Math.max(chunk.length, pieceMinBytes));
      this.#buffer = chunk;
    } else {
      if (length > this.#buffer.length) this.#grow(length);
      chunk.copy(this.#buffer, this.#length);
    }
    this.#length = length;
  }

  get bytes(): Buffer {
    return this.#buffer.subarray(0, this.#length);
  }

  #grow(length: number): void {
    const larger = Math.max(length, 2 * this.#buffer.length, firstCapacityBytes);
    this.#charge.add(larger - this.#buffer.length);
    const buffer = Buffer.allocUnsafeSlow(larger);
    this.bytes.copy(buffer);
    this.#buffer = buffer;
  }
}
