/** A bounded number of things at once; the rest wait in line, in order. */
import { unless } from "./deadline.ts";

/** `later`: only when nobody urgent has been at work or in line for a while, and one at a time. */
export type Urgency = "now" | "later";

/** As long as a command or two of whoever was just started. */
export const settleMs = 300;

export class Slots {
  readonly #count: number;
  readonly #waitMs: number;
  #busy = 0;
  #settling: NodeJS.Timeout | undefined;
  #isOneLater = false;
  readonly #waiting: (() => void)[] = [];
  readonly #later: (() => void)[] = [];

  /**
   * `waitMs`: how long all have to be free before what can wait. Whoever left one has commands to run now, and what is made
   * ahead of time costs more than it saves when there is no time to spare.
   */
  constructor(count: number, waitMs = 0) {
    this.#count = count;
    this.#waitMs = waitMs;
  }

  /** Runs `work` when a slot is free. When `unwanted` fires first, rejects with its reason. */
  run<T>(work: () => Promise<T>, urgency: Urgency = "now", unwanted?: AbortSignal): Promise<T> {
    return urgency === "now" ? this.#run(work, unwanted) : this.#runLater(work, unwanted);
  }

  async #run<T>(work: () => Promise<T>, unwanted: AbortSignal | undefined): Promise<T> {
    if (this.#busy >= this.#count) await this.#queue(unwanted);
    else this.#busy++;
    clearTimeout(this.#settling);
    this.#settling = undefined;
    try {
      return await work();
    } finally {
      this.#handOn();
    }
  }

  /** It takes no slot from the others: who comes while it runs does not wait for it. */
  async #runLater<T>(work: () => Promise<T>, unwanted: AbortSignal | undefined): Promise<T> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#later.push(resolve);
    this.#admitOneLater();
    try {
      await unless(unwanted, promise);
      return await work();
    } finally {
      const at = this.#later.indexOf(resolve);
      if (at !== -1) this.#later.splice(at, 1);
      else this.#isOneLater = false;
      this.#admitOneLater();
    }
  }

  /** Whoever leaves the line makes nobody behind wait longer. */
  async #queue(unwanted: AbortSignal | undefined): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push(resolve);
    try {
      await unless(unwanted, promise);
    } catch (error) {
      const at = this.#waiting.indexOf(resolve);
      // Called out of the line at the same moment.
      if (at === -1) this.#handOn();
      else this.#waiting.splice(at, 1);
      throw error;
    }
  }

  #handOn(): void {
    const next = this.#waiting.shift();
    if (next !== undefined) next();
    else if (--this.#busy === 0) this.#settle();
  }

  #settle(): void {
    clearTimeout(this.#settling);
    const admit = () => {
      this.#settling = undefined;
      this.#admitOneLater();
    };
    if (this.#waitMs === 0) admit();
    else this.#settling = setTimeout(admit, this.#waitMs).unref();
  }

  #admitOneLater(): void {
    if (this.#busy > 0 || this.#isOneLater || this.#settling !== undefined) return;
    const next = this.#later.shift();
    if (next === undefined) return;
    this.#isOneLater = true;
    next();
  }
}
