/**
 * When VMs are started. Three disciplines:
 *
 *      run             in one of `slots`, which go to the owners in turn (fair-slots.ts): loading a VM
 *      runUnslotted    at once: waiting for the agent of a VM whose CPUs run
 *      runBackground   one at a time, outside of the slots, after a quiet period without any of the others
 *
 * An agent is as slow as its guest wants, so no slot and no turn of the background is held while one is waited for
 * (docs/adr/0033). A capsule that was just started or unparked is about to run its first command. Work in the background would
 * slow it down, so such a wait holds it off too, but not for long.
 */
import type { Turn } from "../host.ts";
import { FairSlots, waitIn } from "./fair-slots.ts";

/** Quiet periods before background work, in milliseconds: after the last start in a slot, and after the last unslotted one. */
export interface QuietPeriods {
  slottedMs: number;
  unslottedMs: number;
}

export const quietPeriods: QuietPeriods = { slottedMs: 300, unslottedMs: 150 };
/** Longest time for which one unslotted start holds off background work. An agent that answers does so within a fraction of it. */
const unslottedMaxMs = 1_000;

export class StartScheduler {
  readonly #slots: FairSlots;
  readonly #quiet: QuietPeriods;
  /** Unslotted starts that hold off background work, each by the timer that ends this. */
  readonly #unslotted = new Set<NodeJS.Timeout>();
  #isBackgroundRunning = false;
  #quietUntilMs = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  readonly #background = new Set<() => void>();

  constructor(slots: number, quiet: QuietPeriods = { slottedMs: 0, unslottedMs: 0 }) {
    this.#slots = new FairSlots(slots, { onIdle: () => this.#beginQuietPeriod(quiet.slottedMs) });
    this.#quiet = quiet;
  }

  /**
   * As FairSlots.run. `work` begins with the memory that was admitted for it; throws "no_capacity" when that is gone. When it has
   * succeeded, the VM is loaded.
   */
  run<T>({ owner, signal, admitted }: Turn, work: () => Promise<T>): Promise<T> {
    const begin = async () => {
      admitted?.begin();
      const result = await work();
      admitted?.loaded();
      return result;
    };
    return this.#slots.run(owner, begin, signal);
  }

  /** Holds background work off, for at most `unslottedMaxMs`. `quiet`: the period that follows `work`. */
  async runUnslotted<T>(work: () => Promise<T>, quiet: keyof QuietPeriods = "unslottedMs"): Promise<T> {
    const late = setTimeout(() => this.#endUnslotted(late), unslottedMaxMs).unref();
    this.#unslotted.add(late);
    try {
      return await work();
    } finally {
      clearTimeout(late);
      this.#beginQuietPeriod(this.#quiet[quiet]);
      this.#endUnslotted(late);
    }
  }

  #endUnslotted(late: NodeJS.Timeout): void {
    this.#unslotted.delete(late);
    this.#startBackground();
  }

  /** `signal` as in `run`. */
  async runBackground<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const turn = waitIn(this.#background, signal, () => this.#endBackground());
    this.#startBackground();
    await turn;
    try {
      return await work();
    } finally {
      this.#endBackground();
    }
  }

  #beginQuietPeriod(ms: number): void {
    this.#quietUntilMs = Math.max(this.#quietUntilMs, performance.now() + ms);
    this.#startBackground();
  }

  #startBackground(): void {
    const [next] = this.#background;
    if (next === undefined || this.#isBackgroundRunning || this.#unslotted.size > 0 || !this.#slots.isIdle) return;
    const leftMs = this.#quietUntilMs - performance.now();
    if (leftMs > 0) {
      this.#timer ??= setTimeout(() => {
        this.#timer = undefined;
        this.#startBackground();
      }, leftMs).unref();
      return;
    }
    this.#isBackgroundRunning = true;
    this.#background.delete(next);
    next();
  }

  #endBackground(): void {
    this.#isBackgroundRunning = false;
    this.#startBackground();
  }
}
