/** A bounded number of things at once; the rest wait in line, in order. */
import { unless } from "../deadline.ts";

/** `later`: only when nobody urgent has been at work, in line or beside for a while, and one at a time. */
export type Urgency = "now" | "later";

/** As long as a command or two of whoever was just started, or was just given what had been made ahead of time. */
export const settleMs = { started: 300, given: 150 } as const;

export class Slots {
  readonly #count: number;
  #busy = 0;
  #beside = 0;
  readonly #started: Rest;
  readonly #given: Rest;
  #isOneLater = false;
  readonly #waiting: (() => void)[] = [];
  readonly #later: (() => void)[] = [];

  /**
   * How long all have to be free before what can wait, after one that was left and after what ran beside them. Whoever left
   * one has commands to run now, and what is made ahead of time costs more than it saves when there is no time to spare.
   */
  constructor(count: number, waitMs: { started: number; given: number } = { started: 0, given: 0 }) {
    this.#count = count;
    this.#started = new Rest(waitMs.started, () => this.#admitOneLater());
    this.#given = new Rest(waitMs.given, () => this.#admitOneLater());
  }

  /** Runs `work` when a slot is free. When `unwanted` fires first, rejects with its reason. */
  run<T>(work: () => Promise<T>, urgency: Urgency = "now", unwanted?: AbortSignal): Promise<T> {
    return urgency === "now" ? this.#run(work, unwanted) : this.#runLater(work, unwanted);
  }

  async #run<T>(work: () => Promise<T>, unwanted: AbortSignal | undefined): Promise<T> {
    if (this.#busy >= this.#count) await this.#queue(unwanted);
    else this.#busy++;
    this.#started.end();
    try {
      return await work();
    } finally {
      this.#handOn();
    }
  }

  /** Runs `work` at once, in no slot. What can wait waits for it as for the others. */
  async beside<T>(work: () => Promise<T>): Promise<T> {
    this.#beside++;
    this.#given.end();
    try {
      return await work();
    } finally {
      if (--this.#beside === 0) this.#given.begin();
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
    else if (--this.#busy === 0) this.#started.begin();
  }

  #admitOneLater(): void {
    if (this.#busy > 0 || this.#beside > 0 || this.#isOneLater || this.#started.isOn || this.#given.isOn) return;
    const next = this.#later.shift();
    if (next === undefined) return;
    this.#isOneLater = true;
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
