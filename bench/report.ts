/**
 * What a run has found, beside what the catalog asks for. A figure that was not measured, or a yardstick that is not here,
 * is absent: neither met nor missed, and never passed over in silence.
 */
import {
  type Catalog,
  type Entry,
  entryOf,
  type FigureId,
  figureIds,
  isWithin,
  type Target,
  type Unit,
} from "./catalog.ts";
import { type Summary, summarize } from "./statistics.ts";
import type { Trace } from "./trace-stages.ts";

/** What a figure is compared with, measured in the same run. */
export interface Yardstick {
  name: string;
  measured: Summary;
}

/** The same value of something that does nothing but what cannot be done without. */
export interface Limit {
  name: string;
  value: number;
}

/** The value that a target bounds, what it was compared with, and what it cannot be better than; or why there is none. */
export type Finding = { value: number; against?: Yardstick; limit?: Limit } | { absent: string };

type Findings<F extends FigureId> = Record<keyof Catalog[F]["targets"], Finding>;

/** Out of reach: in this run the limit itself misses the target. How close the value comes to it is a target of its own. */
export type Verdict = "met" | "missed" | "out of reach" | "absent";

export interface Row {
  id: FigureId;
  name: string;
  unit: Unit;
  measured: Summary | undefined;
  /** Why nothing was measured. */
  absent?: string;
  checks: { target: Target; finding: Finding; verdict: Verdict }[];
}

export class Report {
  readonly #measured = new Map<FigureId, { measured: Summary; findings: Record<string, Finding> }>();
  readonly #absent = new Map<FigureId, string>();
  readonly #traces: Trace[] = [];

  /** Takes a figure's samples down, and for each of its targets what was found. */
  note<F extends FigureId>(id: F, samples: readonly number[] | Summary, findings: Findings<F>): void {
    const measured = "p50" in samples ? samples : summarize(samples);
    this.#measured.set(id, { measured, findings });
  }

  /** The figure could not be measured here. */
  miss(id: FigureId, why: string): void {
    this.#absent.set(id, why);
  }

  trace(trace: Trace): void {
    this.#traces.push(trace);
  }

  get traces(): readonly Trace[] {
    return this.#traces;
  }

  /** The figures of these groups in the catalog's order, with what nobody has measured among them. */
  rows(groups: readonly string[], isLong: boolean): Row[] {
    const isAsked = (entry: Entry) => groups.includes(entry.group) && (isLong || entry.isLong !== true);
    return figureIds.filter((id) => isAsked(entryOf(id))).map((id) => this.#row(id));
  }

  #row(id: FigureId): Row {
    const { name, unit, targets } = entryOf(id);
    const found = this.#measured.get(id);
    const absent = this.#absent.get(id) ?? "it was not measured";
    const checks = Object.entries(targets).map(([key, target]) => {
      const finding = found?.findings[key] ?? { absent };
      return { target, finding, verdict: judge(target, finding) };
    });
    return found === undefined
      ? { id, name, unit, measured: undefined, absent, checks }
      : { id, name, unit, measured: found.measured, checks };
  }
}

/** How many times the yardstick's p50. */
export function ratio(samples: readonly number[], name: string, yardstick: readonly number[]): Finding {
  const against = { name, measured: summarize(yardstick) };
  return { value: summarize(samples).p50 / against.measured.p50, against };
}

/** By how much the p50 lies above the yardstick's; 0 where it lies below. */
export function above(samples: readonly number[], name: string, yardstick: readonly number[], times = 1): Finding {
  const against = { name, measured: summarize(yardstick) };
  return { value: Math.max(0, summarize(samples).p50 - times * against.measured.p50), against };
}

/**
 * The same of samples that were taken in turns with their yardstick's: of the turns' ratios, each of a turn's own p50s, the
 * middle one. What the machine does for a second or two hits both sides of a turn.
 */
export function ratioOfTurns(samples: readonly number[][], name: string, yardstick: readonly number[][]): Finding {
  return ofTurns(samples, name, yardstick, (ours, theirs) => ours / theirs);
}

/** By how much a turn's p50 lies above the yardstick's; 0 where it lies below. */
export function aboveOfTurns(samples: readonly number[][], name: string, yardstick: readonly number[][]): Finding {
  return ofTurns(samples, name, yardstick, (ours, theirs) => Math.max(0, ours - theirs));
}

function ofTurns(
  samples: readonly number[][],
  name: string,
  yardstick: readonly number[][],
  compare: (ours: number, theirs: number) => number,
): Finding {
  if (samples.length !== yardstick.length) throw new Error(`${name} had another number of turns`);
  const values = samples.map((turn, index) => compare(summarize(turn).p50, summarize(yardstick[index]!).p50));
  return {
    value: summarize(values).p50,
    against: { name: `${name}, in turns`, measured: summarize(yardstick.flat()) },
  };
}

/**
 * True when every target of these rows was looked at, and kept unless nothing could have kept it. A figure without targets has
 * to be measured, no more.
 */
export function isAllMet(rows: readonly Row[]): boolean {
  const isFine = (verdict: Verdict) => verdict === "met" || verdict === "out of reach";
  return rows.every(({ measured, checks }) => measured !== undefined && checks.every(({ verdict }) => isFine(verdict)));
}

function judge(target: Target, finding: Finding): Verdict {
  if ("absent" in finding) return "absent";
  if (isWithin(finding.value, target)) return "met";
  const limit = finding.limit?.value ?? Number.NaN;
  return Number.isNaN(limit) || isWithin(limit, target) ? "missed" : "out of reach";
}
