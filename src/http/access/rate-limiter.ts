/**
 * Token buckets by name. Each bucket refills at a constant rate up to its burst, and every request takes one token. Memory
 * is bounded: buckets are kept in two generations, and a full generation replaces the one before.
 */

interface Bucket {
  tokens: number;
  atMs: number;
}

/** Names in one generation. A forgotten name starts again with a full bucket. */
const generationMax = 25_000;

export class RateLimiter {
  readonly #ratePerSec: number;
  readonly #burst: number;
  readonly #now: () => number;
  #recent = new Map<string, Bucket>();
  #previous = new Map<string, Bucket>();

  constructor(ratePerSec: number, burst: number, now: () => number = () => performance.now()) {
    this.#ratePerSec = ratePerSec;
    this.#burst = burst;
    this.#now = now;
  }

  /** Takes a token and returns 0, or returns the seconds, rounded up, until there is one. */
  take(name: string): number {
    const bucket = this.#refilled(name);
    if (bucket.tokens < 1) return Math.ceil((1 - bucket.tokens) / this.#ratePerSec);
    bucket.tokens -= 1;
    return 0;
  }

  /**
   * Takes tokens for work that was done already. There may be fewer than that: the next `take` waits for the rest too, for as
   * long as a full bucket takes at most.
   */
  charge(name: string, tokens: number): void {
    const bucket = this.#refilled(name);
    bucket.tokens = Math.max(bucket.tokens - tokens, -this.#burst);
  }

  #refilled(name: string): Bucket {
    const nowMs = this.#now();
    const bucket = this.#recent.get(name) ?? this.#restore(name, nowMs);
    bucket.tokens = Math.min(this.#burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * this.#ratePerSec);
    bucket.atMs = nowMs;
    return bucket;
  }

  get size(): number {
    return this.#recent.size + this.#previous.size;
  }

  /** Moves the bucket from the previous generation, or makes a full one. */
  #restore(name: string, nowMs: number): Bucket {
    const bucket = this.#previous.get(name) ?? { tokens: this.#burst, atMs: nowMs };
    if (this.#recent.size >= generationMax) {
      this.#previous = this.#recent;
      this.#recent = new Map();
    }
    this.#previous.delete(name);
    this.#recent.set(name, bucket);
    return bucket;
  }
}
