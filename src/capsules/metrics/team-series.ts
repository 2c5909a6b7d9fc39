/** The series of one team: its capsules, its creates with the time that each took, and refused requests. */
import type { Clock } from "../clock.ts";
import { type Point, PointRing } from "./point-ring.ts";

/** running, paused, creates, create_ms_p50, create_ms_p95, refused. */
const width = 6;
const hourOfPoints = 360;
/** Times of creates of five minutes that percentiles are made of; the first ones count. */
const timesMax = 2_000;
/** A team without a capsule, a create or a refusal for this long is forgotten. */
const idleMs = 3_600_000;

export interface TeamCounts {
  running: number;
  paused: number;
}

class Tally {
  creates = 0;
  refused = 0;
  readonly times: number[] = [];

  took(ms: number): void {
    if (this.times.length < timesMax) this.times.push(ms);
  }

  values({ running, paused }: TeamCounts): Point["values"] {
    const times = this.times.toSorted((a, b) => a - b);
    return [running, paused, this.creates, percentile(times, 0.5), percentile(times, 0.95), this.refused];
  }
}

export class TeamSeries {
  readonly points = new PointRing(hourOfPoints, width);
  readonly #clock: Clock;
  #usedTicks: number;
  /** Since the last point, and since the last five minutes' end. */
  #tally = new Tally();
  #longTally = new Tally();
  #sum = { running: 0, paused: 0, points: 0, at: 0 };

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#usedTicks = clock.ticks();
  }

  get isIdle(): boolean {
    return this.#clock.ticks() - this.#usedTicks > idleMs;
  }

  created(): void {
    for (const tally of this.#use()) tally.creates++;
  }

  /** A create has reached `running`. */
  took(ms: number): void {
    for (const tally of this.#use()) tally.took(ms);
  }

  refused(): void {
    for (const tally of this.#use()) tally.refused++;
  }

  sample(counts: TeamCounts | undefined): void {
    if (counts !== undefined) this.#use();
    const { running, paused } = counts ?? { running: 0, paused: 0 };
    const point = { at: this.#clock.now(), values: this.#tally.values({ running, paused }) };
    this.#tally = new Tally();
    this.points.add(this.#clock.ticks(), point);
    const sum = this.#sum;
    this.#sum = {
      running: sum.running + running,
      paused: sum.paused + paused,
      points: sum.points + 1,
      at: point.at,
    };
  }

  /** The point of the five minutes, whose next begin; undefined: there was none. */
  take(): Point | undefined {
    const { running, paused, points, at } = this.#sum;
    if (points === 0) return undefined;
    const mean = (sum: number) => Math.round((sum / points) * 10) / 10;
    const values = this.#longTally.values({ running: mean(running), paused: mean(paused) });
    this.#longTally = new Tally();
    this.#sum = { running: 0, paused: 0, points: 0, at: 0 };
    return { at, values };
  }

  #use(): Tally[] {
    this.#usedTicks = this.#clock.ticks();
    return [this.#tally, this.#longTally];
  }
}

/** The nearest rank, in whole milliseconds. `sorted`: ascending. */
function percentile(sorted: readonly number[], share: number): number | null {
  const value = sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)];
  return value === undefined ? null : Math.round(value);
}
