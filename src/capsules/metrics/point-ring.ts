/** The last points of a series, in a fixed number of bytes. Their order is that in which they came, whatever the clock said. */

export interface Point {
  /** Epoch milliseconds, by the clock of then. */
  at: number;
  /** null: not known. */
  values: (number | null)[];
}

export class PointRing {
  readonly #width: number;
  readonly #size: number;
  readonly #times: Float64Array;
  /** Monotonic milliseconds of each point, for its age. */
  readonly #ticks: Float64Array;
  readonly #values: Float32Array;
  /** Points that ever came. */
  #count = 0;

  /** Keeps the last `size` points, each of `width` values. */
  constructor(size: number, width: number) {
    this.#size = size;
    this.#width = width;
    this.#times = new Float64Array(size);
    this.#ticks = new Float64Array(size);
    this.#values = new Float32Array(size * width);
  }

  add(ticks: number, { at, values }: Point): void {
    const place = this.#count++ % this.#size;
    this.#times[place] = at;
    this.#ticks[place] = ticks;
    this.#values.set(
      values.map((value) => value ?? Number.NaN),
      place * this.#width,
    );
  }

  /** Monotonic milliseconds of the newest point; undefined: there is none. */
  get newestTicks(): number | undefined {
    return this.#count === 0 ? undefined : this.#ticks[(this.#count - 1) % this.#size];
  }

  /** The points that came after `ticks`, oldest first. */
  since(ticks: number): Point[] {
    const points: Point[] = [];
    for (let index = Math.max(0, this.#count - this.#size); index < this.#count; index++) {
      const place = index % this.#size;
      if (this.#ticks[place]! <= ticks) continue;
      const values = this.#values.subarray(place * this.#width, (place + 1) * this.#width);
      points.push({ at: this.#times[place]!, values: Array.from(values, known) });
    }
    return points;
  }
}

/** A value of single precision, to a tenth. */
function known(value: number): number | null {
  return Number.isNaN(value) ? null : Math.round(value * 10) / 10;
}
