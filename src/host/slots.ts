/** A bounded number of things at once; the rest wait in line, in order. */

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

  /** Runs `work` when a slot is free. */
  run<T>(work: () => Promise<T>, urgency: Urgency = "now"): Promise<T> {
    return urgency === "now" ? this.#run(work) : this.#runLater(work);
  }

  async #run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#busy >= this.#count) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#busy++;
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#busy--;
      else next();
      this.#admitOneLater();
    }
  }

  /** It takes no slot from the others: who comes while it runs does not wait for it. */
  async #runLater<T>(work: () => Promise<T>): Promise<T> {
    await new Promise<void>((resolve) => {
      this.#later.push(resolve);
      this.#admitOneLater();
    });
    try {
      return await work();
    } finally {
      this.#isOneLater = false;
      this.#admitOneLater();
    }
  }

  #admitOneLater(): void {
    if (this.#busy > 0 || this.#isOneLater) return;
    const next = this.#later.shift();
    if (next === undefined) return;
    this.#isOneLater = true;
    next();
  }
}
