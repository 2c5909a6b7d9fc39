/**
 * The measurements of a run next to the targets of the catalog. A figure that was not measured, or whose baseline is not
 * installed, is absent: reported as such, and neither met nor missed.
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

/** The other side of a comparison, measured in the same run. */
export interface Baseline {
  name: string;
  measured: Summary;
}

/** The same value of a program that does only the unavoidable part of the work. */
export interface Limit {
  name: string;
  value: number;
}

/** The value that a target bounds, with its baseline and its limit; or the reason why it is absent. */
export type Finding = { value: number; against?: Baseline; limit?: Limit } | { absent: string };

type Findings<F extends FigureId> = Record<keyof Catalog[F]["targets"], Finding>;

/** Out of reach: in this run the limit itself misses the target. */
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

  /** Records a figure's samples and a finding for each of its targets. */
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

  /** The figures of these groups in the catalog's order, unmeasured ones included. */
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

/** The ratio of the p50s. */
export function ratio(samples: readonly number[], name: string, baseline: readonly number[]): Finding {
  const against = { name, measured: summarize(baseline) };
  return { value: summarize(samples).p50 / against.measured.p50, against };
}

/** The difference of the p50s; 0 if it is negative. */
export function above(samples: readonly number[], name: string, baseline: readonly number[], times = 1): Finding {
  const against = { name, measured: summarize(baseline) };
  return { value: Math.max(0, summarize(samples).p50 - times * against.measured.p50), against };
}

/**
 * The ratio of samples that were interleaved with their baseline's, turn by turn: the median of the turns' ratios of p50s. A
 * slow second of the machine then affects both sides of a turn.
 */
export function pairedRatio(samples: readonly number[][], name: string, baseline: readonly number[][]): Finding {
  return paired(samples, name, baseline, (ours, theirs) => ours / theirs);
}

/** The median of the turns' differences of p50s; a negative difference counts as 0. */
export function pairedDifference(samples: readonly number[][], name: string, baseline: readonly number[][]): Finding {
  return paired(samples, name, baseline, (ours, theirs) => Math.max(0, ours - theirs));
}

function paired(
  samples: readonly number[][],
  name: string,
  baseline: readonly number[][],
  compare: (ours: number, theirs: number) => number,
): Finding {
  if (samples.length !== baseline.length) throw new Error(`${name} had another number of turns`);
  const values = samples.map((turn, index) => compare(summarize(turn).p50, summarize(baseline[index]!).p50));
  return {
    value: summarize(values).p50,
    against: { name: `${name}, interleaved`, measured: summarize(baseline.flat()) },
  };
}

/** True when every figure was measured and every target is met or out of reach. */
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
