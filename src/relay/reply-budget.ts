/** A bound of what the relay may send: replies to questions, and so many bytes a second beside them. */
import type { ToRelay } from "./messages.ts";

const perSecBytes = 4 << 20;
const burstBytes = 16 << 20;
/** A message costs the server as much as so many bytes, however short it is. */
const leastBytes = 1_024;
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

  /** `message`: a reply as it came, with fields that are none. False: it is one too many. */
  take(message: unknown, nowMs = performance.now()): boolean {
    const grown = this.#leftBytes + ((nowMs - this.#atMs) / 1_000) * perSecBytes;
    this.#leftBytes = Math.min(burstBytes, grown) - Math.max(leastBytes, JSON.stringify(message).length);
    this.#atMs = nowMs;
    return this.#leftBytes >= 0;
  }
}
