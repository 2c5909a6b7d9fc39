/** A bound of how often something may happen: so many at once, and so many a second after that. */

export class Rate {
  #perSec: number;
  #burst: number;
  #left: number;
  #atMs: number;

  constructor({ perSec, burst }: { perSec: number; burst: number }, nowMs = performance.now()) {
    this.#perSec = perSec;
    this.#burst = burst;
    this.#left = burst;
    this.#atMs = nowMs;
  }

  change({ perSec, burst }: { perSec: number; burst: number }): void {
    this.#perSec = perSec;
    this.#burst = burst;
  }

  /** Whether one more may happen now. */
  take(nowMs = performance.now()): boolean {
    this.#left = Math.min(this.#burst, this.#left + ((nowMs - this.#atMs) / 1_000) * this.#perSec);
    this.#atMs = nowMs;
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }
}
