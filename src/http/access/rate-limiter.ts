/**
 * Token buckets, one per name: each fills at a constant rate up to its burst, and every request takes a token out. So a
 * caller may be fast for a while, and for long only as fast as the rate.
 */

interface Bucket {
  tokens: number;
  atMs: number;
}

/** Of one age. Two ages are remembered: names of before are forgotten and start anew. */
const namesMax = 25_000;

export class RateLimiter {
  readonly #ratePerSec: number;
  readonly #burst: number;
  readonly #now: () => number;
  /** Seen in this age, and only in the one before; an age ends when it has seen as many names as it may. */
  #recent = new Map<string, Bucket>();
  #earlier = new Map<string, Bucket>();

  constructor(ratePerSec: number, burst: number, now: () => number = () => performance.now()) {
    this.#ratePerSec = ratePerSec;
    this.#burst = burst;
    this.#now = now;
  }

  /** Takes a token. 0: there was one; else the seconds, rounded up, until there is one again. */
  take(name: string): number {
    const nowMs = this.#now();
    const bucket = this.#recent.get(name) ?? this.#bringBack(name, nowMs);
    bucket.tokens = Math.min(this.#burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * this.#ratePerSec);
    bucket.atMs = nowMs;
    if (bucket.tokens < 1) return Math.ceil((1 - bucket.tokens) / this.#ratePerSec);
    bucket.tokens -= 1;
    return 0;
  }

  get size(): number {
    return this.#recent.size + this.#earlier.size;
  }

  /** Into this age, from the one before or anew. */
  #bringBack(name: string, nowMs: number): Bucket {
    const bucket = this.#earlier.get(name) ?? { tokens: this.#burst, atMs: nowMs };
    if (this.#recent.size >= namesMax) {
      this.#earlier = this.#recent;
      this.#recent = new Map();
    }
    this.#earlier.delete(name);
    this.#recent.set(name, bucket);
    return bucket;
  }
}
