/**
 * The inactivity timers, one per running capsule with a TTL. A TTL counts from the last activity, or from the start of the
 * run if there was none, and is suspended while a command runs.
 */
import type { Activity } from "./activity.ts";
import type { Clock } from "./clock.ts";

interface Watched {
  timeoutMs: number;
  /** Monotonic milliseconds from which it counts as idle, unless there was activity since. */
  sinceTicks: number;
  cancel: () => void;
}

export class Idle {
  readonly #clock: Clock;
  readonly #activity: Activity;
  readonly #expire: (id: string) => Promise<unknown>;
  readonly #watched = new Map<string, Watched>();
  readonly #retryMs: number;

  /** `expire` pauses the capsule and unwatches it; `retryMs`: see `watchAgain`. */
  constructor(clock: Clock, activity: Activity, expire: (id: string) => Promise<unknown>, retryMs = 30_000) {
    this.#clock = clock;
    this.#activity = activity;
    this.#expire = expire;
    this.#retryMs = retryMs;
    activity.onChange((id) => {
      // Activity moves the deadline later, which #fire notices. Only the end of a command needs a new timer: while it ran,
      // none was armed.
      const watched = this.#watched.get(id);
      if (watched !== undefined && !activity.isBusy(id)) this.#arm(id, watched);
    });
  }

  /** The capsule is running, and has been idle for `idleMs`. */
  watch(id: string, timeoutSec: number, idleMs = 0): void {
    this.unwatch(id);
    if (timeoutSec === 0) return;
    const watched = { timeoutMs: timeoutSec * 1_000, sinceTicks: this.#clock.ticks() - idleMs, cancel: () => {} };
    this.#watched.set(id, watched);
    this.#arm(id, watched);
  }

  /** As `watch`, for a capsule whose pause has just failed: the next try comes after `retryMs` instead of a whole TTL. */
  watchAgain(id: string, timeoutSec: number): void {
    this.watch(id, timeoutSec, timeoutSec * 1_000 - this.#retryMs);
  }

  unwatch(id: string): void {
    this.#watched.get(id)?.cancel();
    this.#watched.delete(id);
  }

  stop(): void {
    for (const id of [...this.#watched.keys()]) this.unwatch(id);
  }

  #arm(id: string, watched: Watched): void {
    watched.cancel();
    watched.cancel = this.#clock.after(this.#leftMs(id, watched), () => this.#fire(id, watched));
  }

  #leftMs(id: string, watched: Watched): number {
    const since = Math.max(this.#activity.lastTicks(id) ?? Number.NEGATIVE_INFINITY, watched.sinceTicks);
    return Math.max(0, since + watched.timeoutMs - this.#clock.ticks());
  }

  #fire(id: string, watched: Watched): void {
    if (this.#watched.get(id) !== watched || this.#activity.isBusy(id)) return;
    if (this.#leftMs(id, watched) > 0) {
      this.#arm(id, watched);
      return;
    }
    this.#expire(id).catch(() => {
      // A pause that failed has called watchAgain itself; one that never began has not.
      if (this.#watched.get(id) === watched) this.watchAgain(id, watched.timeoutMs / 1_000);
    });
  }
}
