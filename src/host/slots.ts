/** A bounded number of things at once; the rest wait in line, in order. */
import { unless } from "./deadline.ts";

/** `later`: only while nobody urgent is at work or in line, and one at a time. */
export type Urgency = "now" | "later";

export class Slots {
  readonly #count: number;
  #busy = 0;
  #isOneLater = false;
  readonly #waiting: (() => void)[] = [];
  readonly #later: (() => void)[] = [];

  constructor(count: number) {
    this.#count = count;
  }

  /** Runs `work` when a slot is free. When `unwanted` fires first, rejects with its reason. */
  run<T>(work: () => Promise<T>, urgency: Urgency = "now", unwanted?: AbortSignal): Promise<T> {
    return urgency === "now" ? this.#run(work, unwanted) : this.#runLater(work, unwanted);
  }

  async #run<T>(work: () => Promise<T>, unwanted: AbortSignal | undefined): Promise<T> {
    if (this.#busy >= this.#count) await this.#queue(unwanted);
    else this.#busy++;
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
    if (next === undefined) this.#busy--;
    else next();
    this.#admitOneLater();
  }

  #admitOneLater(): void {
    if (this.#busy > 0 || this.#isOneLater) return;
    const next = this.#later.shift();
    if (next === undefined) return;
    this.#isOneLater = true;
    next();
  }
}
