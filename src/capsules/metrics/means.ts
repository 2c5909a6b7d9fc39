/** The mean of each value over the points of five minutes; values that are not known do not count. */
import type { Point } from "./point-ring.ts";

export class Means {
  readonly #sums: number[];
  readonly #counts: number[];
  #at = 0;
  #points = 0;

  constructor(width: number) {
    this.#sums = new Array(width).fill(0);
    this.#counts = new Array(width).fill(0);
  }

  /** Whether a point was added since `take`. */
  get hasPoints(): boolean {
    return this.#points > 0;
  }

  add({ at, values }: Point): void {
    this.#at = at;
    this.#points++;
    for (const [index, value] of values.entries()) {
      if (value === null) continue;
      this.#sums[index]! += value;
      this.#counts[index]!++;
    }
  }

  /** At the time of the last point; undefined: there was none. The next one begins anew. */
  take(): Point | undefined {
    if (this.#points === 0) return undefined;
    const values = this.#sums.map((sum, index) => {
      const count = this.#counts[index]!;
      return count === 0 ? null : Math.round((sum / count) * 10) / 10;
    });
    this.#points = 0;
    this.#sums.fill(0);
    this.#counts.fill(0);
    return { at: this.#at, values };
  }
}
