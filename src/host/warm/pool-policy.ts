/** The rules of a demand pool, without timers or state of their own: how many items of a key to keep ready, and when to make one. */

/** Claims within this time have to be served from what is ready; making a few items takes about as long. */
const windowMs = 5_000;
const memoryMs = 600_000;
/** Claims that are remembered; also the largest target. */
const maxClaims = 64;
/** After a claim the capsule runs its first command; making an item at that moment would slow it down. */
export const refillDelayMs = 100;
const firstRetryMs = 1_000;
const lastRetryMs = 300_000;

/** The claims of one key in the last ten minutes. */
export class DemandEstimator {
  /** Ascending, in milliseconds of a monotonic clock. */
  #claimsMs: number[] = [];

  record(nowMs: number): void {
    this.#claimsMs.push(nowMs);
    if (this.#claimsMs.length > maxClaims) this.#claimsMs.shift();
  }

  /** The last claim; -Infinity when there was none. */
  get lastMs(): number {
    return this.#claimsMs.at(-1) ?? Number.NEGATIVE_INFINITY;
  }

  /** The largest number of claims within one window. Zero until there were two claims. */
  targetSize(nowMs: number): number {
    while ((this.#claimsMs[0] ?? Number.POSITIVE_INFINITY) < nowMs - memoryMs) this.#claimsMs.shift();
    if (this.#claimsMs.length < 2) return 0;
    let most = 0;
    let first = 0;
    for (const [last, atMs] of this.#claimsMs.entries()) {
      while ((this.#claimsMs[first] as number) < atMs - windowMs) first++;
      most = Math.max(most, last - first + 1);
    }
    return most;
  }
}

/** All times in milliseconds of one monotonic clock. */
export interface RefillState {
  /** The last claim of any key. */
  claimedMs: number;
  /** When the last item was begun and finished, of any key. */
  making: { beganMs: number; endedMs: number };
  /** For this key: failures since the last success, and when the last one was. */
  failures: number;
  failedMs: number;
  /** Nothing of this key is ready. */
  isEmpty: boolean;
}

/**
 * The earliest time at which an item of a key may be made: not right after a claim, not before the pause after a failure is
 * over, which doubles each time, and, unless the key has run out, at most half of the time.
 */
export function refillAtMs({ claimedMs, making, failures, failedMs, isEmpty }: RefillState): number {
  const retryMs = failures === 0 ? 0 : Math.min(firstRetryMs * 2 ** (failures - 1), lastRetryMs);
  const restMs = isEmpty ? 0 : making.endedMs - making.beganMs;
  return Math.max(claimedMs + refillDelayMs, failedMs + retryMs, making.endedMs + restMs);
}
