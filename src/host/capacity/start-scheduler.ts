/**
 * When VMs are started. Three disciplines:
 *
 *      run             in one of `slots`, in order of arrival
 *      runUnslotted    at once: a parked guest costs too little to wait
 *      runBackground   one at a time, outside of the slots, after a quiet period without any of the others
 *
 * A capsule that was just started or unparked is about to run its first command. Work in the background would slow it down.
 */
import { unlessAborted } from "../deadline.ts";

/** Quiet periods before background work, in milliseconds: after the last start in a slot, and after the last unslotted one. */
export interface QuietPeriods {
  slottedMs: number;
  unslottedMs: number;
}

export const quietPeriods: QuietPeriods = { slottedMs: 300, unslottedMs: 150 };

export class StartScheduler {
  readonly #slots: number;
  readonly #quiet: QuietPeriods;
  #busy = 0;
  #unslotted = 0;
  #isBackgroundRunning = false;
  #quietUntilMs = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  readonly #waiting: (() => void)[] = [];
  readonly #background: (() => void)[] = [];

  constructor(slots: number, quiet: QuietPeriods = { slottedMs: 0, unslottedMs: 0 }) {
    this.#slots = slots;
    this.#quiet = quiet;
  }

  /** When `signal` fires before a slot is free, rejects with its reason. Afterwards the signal is the work's to watch. */
  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    if (this.#busy < this.#slots) this.#busy++;
    else await waitIn(this.#waiting, signal, () => this.#releaseSlot());
    try {
      return await work();
    } finally {
      this.#releaseSlot();
    }
  }

  async runUnslotted<T>(work: () => Promise<T>): Promise<T> {
    this.#unslotted++;
    try {
      return await work();
    } finally {
      if (--this.#unslotted === 0) this.#beginQuietPeriod(this.#quiet.unslottedMs);
    }
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

  /** Hands the slot to the next in line, if any. */
  #releaseSlot(): void {
    const next = this.#waiting.shift();
    if (next !== undefined) next();
    else if (--this.#busy === 0) this.#beginQuietPeriod(this.#quiet.slottedMs);
  }

  #beginQuietPeriod(ms: number): void {
    this.#quietUntilMs = Math.max(this.#quietUntilMs, performance.now() + ms);
    this.#startBackground();
  }

  #startBackground(): void {
    if (this.#isBackgroundRunning || this.#busy > 0 || this.#unslotted > 0 || this.#background.length === 0) return;
    const leftMs = this.#quietUntilMs - performance.now();
    if (leftMs > 0) {
      this.#timer ??= setTimeout(() => {
        this.#timer = undefined;
        this.#startBackground();
      }, leftMs).unref();
      return;
    }
    this.#isBackgroundRunning = true;
    this.#background.shift()?.();
  }

  #endBackground(): void {
    this.#isBackgroundRunning = false;
    this.#startBackground();
  }
}

/** Resolves when called from the line. `giveBack` is called if it was called, and `signal` fired, in the same turn. */
async function waitIn(line: (() => void)[], signal: AbortSignal | undefined, giveBack: () => void): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  line.push(resolve);
  try {
    await unlessAborted(signal, promise);
  } catch (error) {
    const at = line.indexOf(resolve);
    if (at === -1) giveBack();
    else line.splice(at, 1);
    throw error;
  }
}
