/** A bounded number of things at once; the rest wait in line, in order. */
import { unlessAborted } from "../deadline.ts";

/** `later`: only when nobody urgent has been at work, in line or beside for a while, and one at a time. */
export type Priority = "now" | "later";

/** As long as a command or two of whoever was just started, or was just given what had been made ahead of time. */
export const quietPeriodMs = { started: 300, given: 150 } as const;

export class StartScheduler {
  readonly #count: number;
  #busy = 0;
  #unslotted = 0;
  readonly #started: Rest;
  readonly #given: Rest;
  #isBackgroundRunning = false;
  readonly #waiting: (() => void)[] = [];
  readonly #background: (() => void)[] = [];

  /**
   * How long all have to be free before what can wait, after one that was left and after what ran beside them. Whoever left
   * one has commands to run now, and what is made ahead of time costs more than it saves when there is no time to spare.
   */
  constructor(count: number, waitMs: { started: number; given: number } = { started: 0, given: 0 }) {
    this.#count = count;
    this.#started = new Rest(waitMs.started, () => this.#startBackground());
    this.#given = new Rest(waitMs.given, () => this.#startBackground());
  }

  /** Runs `work` when a slot is free. When `unwanted` fires first, rejects with its reason. */
  run<T>(work: () => Promise<T>, urgency: Priority = "now", signal?: AbortSignal): Promise<T> {
    return urgency === "now" ? this.#run(work, signal) : this.#runBackground(work, signal);
  }

  async #run<T>(work: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    if (this.#busy >= this.#count) await this.#waitForSlot(signal);
    else this.#busy++;
    this.#started.end();
    try {
      return await work();
    } finally {
      this.#releaseSlot();
    }
  }

  /** Runs `work` at once, in no slot. What can wait waits for it as for the others. */
  async runUnslotted<T>(work: () => Promise<T>): Promise<T> {
    this.#unslotted++;
    this.#given.end();
    try {
      return await work();
    } finally {
      if (--this.#unslotted === 0) this.#given.begin();
    }
  }

  /** It takes no slot from the others: who comes while it runs does not wait for it. */
  async #runBackground<T>(work: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#background.push(resolve);
    this.#startBackground();
    try {
      await unlessAborted(signal, promise);
      return await work();
    } finally {
      const at = this.#background.indexOf(resolve);
      if (at !== -1) this.#background.splice(at, 1);
      else this.#isBackgroundRunning = false;
      this.#startBackground();
    }
  }

  /** Whoever leaves the line makes nobody behind wait longer. */
  async #waitForSlot(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push(resolve);
    try {
      await unlessAborted(signal, promise);
    } catch (error) {
      const at = this.#waiting.indexOf(resolve);
      // Called out of the line at the same moment.
      if (at === -1) this.#releaseSlot();
      else this.#waiting.splice(at, 1);
      throw error;
    }
  }

  #releaseSlot(): void {
    const next = this.#waiting.shift();
    if (next !== undefined) next();
    else if (--this.#busy === 0) this.#started.begin();
  }

  #startBackground(): void {
    if (this.#busy > 0 || this.#unslotted > 0 || this.#isBackgroundRunning || this.#started.isOn || this.#given.isOn)
      return;
    const next = this.#background.shift();
    if (next === undefined) return;
    this.#isBackgroundRunning = true;
    next();
  }
}

/** A while after which something happens, unless it ends before; without a length, at once. */
class Rest {
  readonly #ms: number;
  readonly #over: () => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(ms: number, over: () => void) {
    this.#ms = ms;
    this.#over = over;
  }

  get isOn(): boolean {
    return this.#timer !== undefined;
  }

  begin(): void {
    this.end();
    const over = () => {
      this.#timer = undefined;
      this.#over();
    };
    if (this.#ms === 0) over();
    else this.#timer = setTimeout(over, this.#ms).unref();
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}
