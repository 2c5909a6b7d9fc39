/**
 * The policy of idle capsules: one timer per running capsule with a TTL. A TTL counts from the last activity, or from the start of the
 * run if there was none, and is suspended while a command runs.
 */
import type { Activity } from "./activity.ts";
import type { Clock } from "./clock.ts";
import type { RunPolicy } from "./run-policy.ts";
import type { Capsule } from "./store.ts";

/** Time until a pause that failed is tried again. */
const retryMs = 30_000;

interface Watched {
  timeoutMs: number;
  /** Monotonic milliseconds from which it counts as idle, unless there was activity since. */
  sinceTicks: number;
  cancel: () => void;
}

export class Idle implements RunPolicy {
  readonly #clock: Clock;
  readonly #activity: Activity;
  readonly #expire: (id: string) => Promise<unknown>;
  readonly #watched = new Map<string, Watched>();

  /** `expire` pauses or destroys the capsule. */
  constructor(clock: Clock, activity: Activity, expire: (id: string) => Promise<unknown>) {
    this.#clock = clock;
    this.#activity = activity;
    this.#expire = expire;
    activity.onChange((id) => {
      // Activity moves the deadline later, which #fire notices. Only the end of a command needs a new timer: while it ran,
      // none was armed.
      const watched = this.#watched.get(id);
      if (watched !== undefined && !activity.isBusy(id)) this.#arm(id, watched);
    });
  }

  /** Idle since now, so that the release does not count; an adopted capsule since its last activity. */
  began({ id, timeoutSec, lastActiveAt, startedAt }: Capsule, isAdopted: boolean): void {
    const idleFrom = Math.max(lastActiveAt ?? 0, startedAt ?? 0);
    this.#watch(id, timeoutSec, isAdopted ? Math.max(0, this.#clock.now() - idleFrom) : 0);
  }

  changed({ id, timeoutSec }: Capsule): void {
    const watched = this.#watched.get(id);
    if (watched?.timeoutMs === timeoutSec * 1_000) return;
    this.#watch(id, timeoutSec, watched === undefined ? 0 : this.#clock.ticks() - watched.sinceTicks);
  }

  /** The next try comes after `retryMs` instead of a whole TTL. */
  pauseFailed({ id, timeoutSec }: Pick<Capsule, "id" | "timeoutSec">): void {
    this.#watch(id, timeoutSec, timeoutSec * 1_000 - retryMs);
  }

  ended(id: string): void {
    this.#watched.get(id)?.cancel();
    this.#watched.delete(id);
  }

  close(): void {
    for (const id of [...this.#watched.keys()]) this.ended(id);
  }

  /** The time, in epoch milliseconds, at which the capsule has become idle; undefined: it is not. */
  passedAt(id: string): number | undefined {
    const watched = this.#watched.get(id);
    const leftMs = watched === undefined || this.#activity.isBusy(id) ? 1 : this.#leftMs(id, watched);
    return leftMs > 0 ? undefined : this.#clock.now() + leftMs;
  }

  /** All that are idle. */
  passed(): { id: string; dueAt: number }[] {
    return [...this.#watched.keys()].flatMap((id) => {
      const dueAt = this.passedAt(id);
      return dueAt === undefined ? [] : [{ id, dueAt }];
    });
  }

  #watch(id: string, timeoutSec: number, idleMs: number): void {
    this.ended(id);
    if (timeoutSec === 0) return;
    const watched = { timeoutMs: timeoutSec * 1_000, sinceTicks: this.#clock.ticks() - idleMs, cancel: () => {} };
    this.#watched.set(id, watched);
    this.#arm(id, watched);
  }

  #arm(id: string, watched: Watched): void {
    watched.cancel();
    watched.cancel = this.#clock.after(Math.max(0, this.#leftMs(id, watched)), () => this.#fire(id, watched));
  }

  /** Negative once it is idle. */
  #leftMs(id: string, watched: Watched): number {
    const since = Math.max(this.#activity.lastTicks(id) ?? Number.NEGATIVE_INFINITY, watched.sinceTicks);
    return since + watched.timeoutMs - this.#clock.ticks();
  }

  #fire(id: string, watched: Watched): void {
    if (this.#watched.get(id) !== watched || this.#activity.isBusy(id)) return;
    if (this.#leftMs(id, watched) > 0) {
      this.#arm(id, watched);
      return;
    }
    this.#expire(id).catch(() => {
      // A pause that failed has called `pauseFailed` itself; one that never began has not.
      if (this.#watched.get(id) === watched) this.pauseFailed({ id, timeoutSec: watched.timeoutMs / 1_000 });
    });
  }
}
