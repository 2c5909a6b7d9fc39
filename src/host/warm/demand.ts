/**
 * How much of one kind was asked for lately, and so how many of it are worth keeping ready: as many as came within one
 * refill, at the busiest moment that is still remembered.
 */

/** Askings within so long of each other have to be served from what is ready: about what making a few anew takes. */
const windowMs = 5_000;
const memoryMs = 600_000;
/** Askings that are remembered; also the most that can be worth keeping. */
const mostRemembered = 64;

export class DemandEstimator {
  /** Ascending, in milliseconds of a steady clock. */
  #askedMs: number[] = [];

  record(nowMs: number): void {
    this.#askedMs.push(nowMs);
    if (this.#askedMs.length > mostRemembered) this.#askedMs.shift();
  }

  /** The last asking; -Infinity when there was none. */
  get lastMs(): number {
    return this.#askedMs.at(-1) ?? Number.NEGATIVE_INFINITY;
  }

  /** How many to keep ready. One asking is no habit: zero until there were two. */
  targetSize(nowMs: number): number {
    while ((this.#askedMs[0] ?? Number.POSITIVE_INFINITY) < nowMs - memoryMs) this.#askedMs.shift();
    if (this.#askedMs.length < 2) return 0;
    let most = 0;
    let first = 0;
    for (const [last, atMs] of this.#askedMs.entries()) {
      while ((this.#askedMs[first] as number) < atMs - windowMs) first++;
      most = Math.max(most, last - first + 1);
    }
    return most;
  }
}
