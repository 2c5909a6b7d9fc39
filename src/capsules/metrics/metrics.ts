/**
 * Metrics of capsules and teams: a point each ten seconds, of which the last hour is in memory, and one each five minutes, of which the
 * last day is in the database (docs/adr/0064).
 */
import type { CapsuleRows } from "../../db/capsule-rows.ts";
import type { MetricRow, MetricRows } from "../../db/metric-rows.ts";
import type { Log } from "../../log.ts";
import type { MetricStep } from "../../wire/metrics.ts";
import type { Clock } from "../clock.ts";
import type { RunPolicy } from "../run-policy.ts";
import type { Runs } from "../runs.ts";
import type { Capsule, CapsuleStore } from "../store.ts";
import { CapsuleSeries } from "./capsule-series.ts";
import type { Point } from "./point-ring.ts";
import { TeamSeries } from "./team-series.ts";

const hourMs = 3_600_000;
const dayMs = 86_400_000;
const longStepMs = 300_000;
/** Guests that are asked at once. */
const askedAtOnce = 64;
/** Rows of one commit, which takes some milliseconds. */
const rowsAtOnce = 200;

export interface MetricsOptions {
  rows: MetricRows;
  capsuleRows: Pick<CapsuleRows, "countsByTeam">;
  store: CapsuleStore;
  runs: Runs;
  clock: Clock;
  log: Log;
  /** Called when a new capsule runs. */
  onCreated?: (seconds: number) => void;
}

export class Metrics implements RunPolicy {
  readonly #options: MetricsOptions;
  readonly #capsules = new Map<string, CapsuleSeries>();
  readonly #teams = new Map<string, TeamSeries>();
  /** Monotonic time of each create under way. */
  readonly #creates = new Map<string, number>();
  /** Capsules that are gone since the last five minutes' end. */
  readonly #gone = new Set<string>();
  #longSince: number;
  #pass: Promise<void> | undefined;
  #isClosed = false;

  constructor(options: MetricsOptions) {
    this.#options = options;
    this.#longSince = options.clock.ticks();
    options.store.subscribe((teamId, id, row) => this.#noticed(teamId, id, row));
  }

  /** The points of a capsule of which the caller knows that it is there, oldest first, each later than `since`. */
  async ofCapsule(id: string, step: MetricStep, since: number): Promise<Point[]> {
    const series = this.#capsules.get(id);
    const newest = await series?.newest();
    const kept = step === 10 ? this.#lastHour(series) : this.#lastDay(id);
    return [...kept, ...(newest === undefined ? [] : [newest])].filter(({ at }) => at > since);
  }

  ofTeam(teamId: string, step: MetricStep, since: number): Point[] {
    const kept = step === 10 ? this.#lastHour(this.#teams.get(teamId)) : this.#lastDay(teamId);
    return kept.filter(({ at }) => at > since);
  }

  /** A request of the team was refused for a quota, capacity or space. */
  refused(teamId: string): void {
    this.#team(teamId).refused();
  }

  /** Adds a point to each series. A pass that is under way is not joined by a second one. Never rejects. */
  pass(): Promise<void> {
    if (this.#isClosed) return Promise.resolve();
    this.#pass ??= this.#sample().finally(() => {
      this.#pass = undefined;
    });
    return this.#pass;
  }

  /** Removes the points of capsules and teams that went while no service ran. */
  open(): void {
    this.#options.rows.removeOrphans();
  }

  /** Awaits the pass under way, and writes what is not written yet. */
  async stop(): Promise<void> {
    this.#isClosed = true;
    for (const series of this.#capsules.values()) series.end();
    await this.#pass;
    await this.#write();
  }

  /** Removes the points of a capsule that is gone. */
  forget(id: string): void {
    this.#creates.delete(id);
    this.#capsules.get(id)?.end();
    this.#capsules.delete(id);
    this.#gone.add(id);
  }

  // ---- Runs

  began(row: Capsule): void {
    const { id } = row;
    const guest = this.#options.runs.guest(id);
    if (guest === undefined || this.#isClosed) return;
    const series = this.#capsules.get(id) ?? new CapsuleSeries(this.#options.clock);
    this.#capsules.set(id, series);
    series.begin(guest, row);
  }

  changed(): void {}

  ended(id: string): void {
    this.#capsules.get(id)?.end();
  }

  pauseFailed(row: Capsule): void {
    this.began(row);
  }

  close(): void {}

  #noticed(teamId: string, id: string, row: Capsule | undefined): void {
    const { clock } = this.#options;
    const createdAt = this.#creates.get(id);
    if (row === undefined) this.forget(id);
    else if (row.status === "starting" && row.intent === "create" && createdAt === undefined) {
      this.#creates.set(id, clock.ticks());
      this.#team(teamId).created();
    } else if (createdAt !== undefined && row.status !== "starting") {
      this.#creates.delete(id);
      if (row.status !== "running") return;
      const tookMs = clock.ticks() - createdAt;
      this.#team(teamId).took(tookMs);
      this.#options.onCreated?.(tookMs / 1_000);
    }
  }

  #team(teamId: string): TeamSeries {
    const series = this.#teams.get(teamId) ?? new TeamSeries(this.#options.clock);
    this.#teams.set(teamId, series);
    return series;
  }

  // ---- Passes

  async #sample(): Promise<void> {
    const { capsuleRows, clock, log } = this.#options;
    try {
      const counts = capsuleRows.countsByTeam();
      for (const teamId of counts.keys()) this.#team(teamId);
      for (const [teamId, series] of this.#teams) series.sample(counts.get(teamId));
      const running = [...this.#capsules.values()].filter((series) => series.isRunning);
      for (let at = 0; at < running.length; at += askedAtOnce)
        await Promise.all(running.slice(at, at + askedAtOnce).map((series) => series.sample()));
      if (clock.ticks() - this.#longSince >= longStepMs) await this.#write();
      this.#forget();
    } catch (error) {
      log.error({ err: error }, "metrics could not be measured or written; it will be tried again");
    }
  }

  async #write(): Promise<void> {
    const { rows, clock, log } = this.#options;
    this.#longSince = clock.ticks();
    const points: MetricRow[] = [];
    for (const [owner, series] of this.#capsules) collect(points, owner, series.means.take());
    for (const [owner, series] of this.#teams) collect(points, owner, series.take());
    const gone = [...this.#gone];
    this.#gone.clear();
    try {
      for (let at = 0; at < points.length; at += rowsAtOnce) {
        const some = points.slice(at, at + rowsAtOnce).filter(({ owner }) => !this.#gone.has(owner));
        rows.add(some, []);
        if (!this.#isClosed) await new Promise(setImmediate);
      }
      rows.add([], gone);
    } catch (error) {
      for (const id of gone) this.#gone.add(id);
      log.error({ err: error }, "points of metrics could not be written, and are lost");
    }
  }

  /** Series that have nothing of the last hour. */
  #forget(): void {
    const before = this.#options.clock.ticks() - hourMs;
    for (const [id, { isRunning, points, means }] of this.#capsules)
      if (!isRunning && !means.hasPoints && (points.newestTicks ?? before) <= before) this.#capsules.delete(id);
    for (const [teamId, series] of this.#teams) if (series.isIdle) this.#teams.delete(teamId);
  }

  #lastHour(series: CapsuleSeries | TeamSeries | undefined): Point[] {
    return series?.points.since(this.#options.clock.ticks() - hourMs) ?? [];
  }

  #lastDay(owner: string): Point[] {
    return this.#options.rows.of(owner, this.#options.clock.now() - dayMs);
  }
}

function collect(points: MetricRow[], owner: string, point: Point | undefined): void {
  if (point !== undefined) points.push({ owner, ...point });
}
