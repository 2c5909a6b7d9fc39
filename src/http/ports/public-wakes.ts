/** Resumes that requests of anybody have begun, of each capsule within the last hour. */
import { CapsuleError } from "../../wire/errors.ts";

const windowMs = 3_600_000;

export class PublicWakes {
  readonly #max: number;
  readonly #now: () => number;
  /** Times of a capsule's wakes, the oldest first. */
  readonly #wakes = new Map<string, number[]>();
  #prunedAt = Number.NEGATIVE_INFINITY;

  /** `now`: monotonic milliseconds. */
  constructor(max: number, now: () => number = () => performance.now()) {
    this.#max = max;
    this.#now = now;
  }

  /** Throws CapsuleError("quota_exceeded"). */
  take(id: string): void {
    const now = this.#now();
    this.#prune(now);
    const recent = (this.#wakes.get(id) ?? []).filter((at) => now - at < windowMs);
    if (recent.length >= this.#max) {
      const [oldest = now] = recent;
      const message = `requests to public ports have resumed capsule ${id} ${recent.length} times within an hour, as often as they may`;
      throw new CapsuleError("quota_exceeded", message, {
        retryAfterSec: Math.ceil((oldest + windowMs - now) / 1_000),
      });
    }
    this.#wakes.set(id, [...recent, now]);
  }

  /** Capsules that are counted. */
  get size(): number {
    return this.#wakes.size;
  }

  /** Once an hour, so that a capsule without wakes takes no memory. */
  #prune(now: number): void {
    if (now - this.#prunedAt < windowMs) return;
    this.#prunedAt = now;
    for (const [id, times] of this.#wakes) if (times.every((at) => now - at >= windowMs)) this.#wakes.delete(id);
  }
}
