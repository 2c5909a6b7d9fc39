/**
 * Memory for what clients have sent in part, or what waits for a turn: JSON bodies, and messages of WebSockets. A thousand requests of
 * a MiB each, left open, would count for nobody otherwise. Each team has a budget of its own, and all clients without a key share one.
 */
import { Counts } from "../../counts.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { AnswerCharge } from "./answer-budget.ts";

export const receivedMaxBytes = 128 << 20;
/** Memory that a piece of one byte takes: its object, and its place in a list. */
export const pieceMinBytes = 256;

export class ReceiveBudget {
  readonly #used = new Counts();

  /** Its `add` throws CapsuleError("quota_exceeded"), without a change. `owner`: a team's id, or "" for clients without a key. */
  open(owner: string): AnswerCharge {
    return new AnswerCharge((bytes) => this.#change(owner, bytes));
  }

  /** Bytes held for all. */
  get usedBytes(): number {
    return this.#used.sum;
  }

  #change(owner: string, bytes: number): void {
    const after = this.#used.of(owner) + bytes;
    if (bytes > 0 && after > receivedMaxBytes) {
      throw new CapsuleError("quota_exceeded", "too many requests have sent a part of their body; try again later", {
        retryAfterSec: 1,
      });
    }
    this.#used.set(owner, after);
  }
}
