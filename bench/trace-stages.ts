/** From marks to stages: the events between the start and the end of a sample, and the time of each step. */
import { summarize } from "./statistics.ts";

/** Nanoseconds of the clock that all processes of the machine share. */
export interface Mark {
  atNs: number;
  what: string;
}

export interface Sample {
  beganNs: number;
  endedNs: number;
}

export interface Trace {
  name: string;
  /** The event that ends each stage, and the milliseconds since the one before. */
  stages: { until: string; p50Ms: number }[];
  samples: number;
}

/**
 * Concurrent events differ in their order from sample to sample. Only samples with the most frequent order count; `samples` is
 * their number.
 */
export function traceOf(name: string, marks: readonly Mark[], samples: readonly Sample[]): Trace {
  const paths = samples.map(({ beganNs, endedNs }) => {
    const inside = marks.filter(({ atNs }) => atNs >= beganNs && atNs <= endedNs);
    const points = [{ atNs: beganNs, what: "" }, ...inside, { atNs: endedNs, what: "the client has the answer" }];
    return points.slice(1).map(({ atNs, what }, index) => ({ until: what, ms: (atNs - points[index]!.atNs) / 1e6 }));
  });
  const groups = Map.groupBy(paths, (path) => path.map(({ until }) => until).join("\n"));
  const commonest = [...groups.values()].toSorted((a, b) => b.length - a.length)[0] ?? [];
  const stages = (commonest[0] ?? []).map(({ until }, index) => ({
    until,
    p50Ms: summarize(commonest.map((path) => path[index]!.ms)).p50,
  }));
  return { name, stages, samples: commonest.length };
}

export function nowNs(): number {
  return Number(process.hrtime.bigint());
}
