/** How often guests have reset themselves lately: a guest that does so again and again is not booted any more. */
import type { Clock } from "./clock.ts";

const periodMs = 60_000;
/** Resets of one capsule within the period after which it still comes back. */
const most = 3;

export class Resets {
  /** One more than that within the period. */
  readonly reason = `the guest reset itself, or its kernel panicked, ${most + 1} times within ${periodMs / 1_000} s`;
  readonly #clock: Clock;
  /** Monotonic milliseconds of each capsule's last resets, oldest first. */
  readonly #last = new Map<string, number[]>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Counts a reset. False: it is one too many, and counting begins anew. */
  note(id: string): boolean {
    const now = this.#clock.ticks();
    for (const [each, ticks] of this.#last) if (now - ticks.at(-1)! >= periodMs) this.#last.delete(each);
    const recent = (this.#last.get(id) ?? []).filter((ticks) => now - ticks < periodMs);
    this.#last.delete(id);
    if (recent.length >= most) return false;
    this.#last.set(id, [...recent, now]);
    return true;
  }
}
