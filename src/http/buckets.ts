/**
 * Token buckets, one per name: each fills at a constant rate up to its burst, and every request takes a token out. So a
 * caller may be fast for a while, and for long only as fast as the rate.
 */

interface Bucket {
  tokens: number;
  atMs: number;
}

/** More names at once than this are not told apart: those seen longest ago start anew. */
const namesMax = 50_000;

export class Buckets {
  readonly #ratePerSec: number;
  readonly #burst: number;
  readonly #now: () => number;
  /** In the order of their last use. */
  readonly #buckets = new Map<string, Bucket>();

  constructor(ratePerSec: number, burst: number, now: () => number = () => performance.now()) {
    this.#ratePerSec = ratePerSec;
    this.#burst = burst;
    this.#now = now;
  }

  /** Takes a token. 0: there was one; else the seconds, rounded up, until there is one again. */
  take(name: string): number {
    const nowMs = this.#now();
    let bucket = this.#buckets.get(name);
    if (bucket === undefined) bucket = { tokens: this.#burst, atMs: nowMs };
    else this.#buckets.delete(name);
    bucket.tokens = Math.min(this.#burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * this.#ratePerSec);
    bucket.atMs = nowMs;
    this.#buckets.set(name, bucket);
    if (this.#buckets.size > namesMax) this.#forgetOne();
    if (bucket.tokens < 1) return Math.ceil((1 - bucket.tokens) / this.#ratePerSec);
    bucket.tokens -= 1;
    return 0;
  }

  get size(): number {
    return this.#buckets.size;
  }

  #forgetOne(): void {
    for (const name of this.#buckets.keys()) {
      this.#buckets.delete(name);
      return;
    }
  }
}
