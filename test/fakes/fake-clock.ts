import type { Clock } from "../../src/capsules/clock.ts";

/** A clock that moves only when told to; its wall clock can be set apart from its ticks. */
export class FakeClock implements Clock {
  #ticks = 0;
  #aheadMs = 1_000_000;
  #timers: { at: number; callback: () => void }[] = [];

  now(): number {
    return this.#ticks + this.#aheadMs;
  }

  ticks(): number {
    return this.#ticks;
  }

  /** Sets the wall clock, as an operator or NTP does; no time passes. */
  step(ms: number): void {
    this.#aheadMs += ms;
  }

  after(ms: number, callback: () => void): () => void {
    const timer = { at: this.#ticks + ms, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** Time until the next timer; undefined: there is none. */
  get nextMs(): number | undefined {
    if (this.#timers.length === 0) return undefined;
    return Math.max(0, Math.min(...this.#timers.map(({ at }) => at)) - this.#ticks);
  }

  advance(ms: number): void {
    this.#ticks += ms;
    const due = this.#timers.filter((timer) => timer.at <= this.#ticks).sort((a, b) => a.at - b.at);
    this.#timers = this.#timers.filter((timer) => timer.at > this.#ticks);
    for (const timer of due) timer.callback();
  }
}
