/** A bound of what the relay may send: replies to questions, and so many bytes a second beside them. */
import type { ToRelay } from "./messages.ts";
import type { Reply } from "./replies.ts";

const perSecBytes = 4 << 20;
const burstBytes = 16 << 20;
/** The longest reply to a question. */
const replyBytes = 256 << 10;

export class ReplyBudget {
  #leftBytes = burstBytes;
  #atMs: number;

  constructor(nowMs = performance.now()) {
    this.#atMs = nowMs;
  }

  /** A message to the relay, which it may answer. */
  asked(message: ToRelay): void {
    if ("seq" in message) this.#leftBytes = Math.min(burstBytes, this.#leftBytes + replyBytes);
  }

  /** False: it is one too many. */
  take(reply: Reply, nowMs = performance.now()): boolean {
    const grown = this.#leftBytes + ((nowMs - this.#atMs) / 1_000) * perSecBytes;
    this.#leftBytes = Math.min(burstBytes, grown) - JSON.stringify(reply).length;
    this.#atMs = nowMs;
    return this.#leftBytes >= 0;
  }
}
