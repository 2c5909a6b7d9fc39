/** Plots of one range of time, which is chosen above them; read again while they are shown. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Range, ranges } from "../state/series.ts";
import { Empty, LoadError, Skeleton } from "./page.tsx";
import { useQuery } from "./query.ts";

const rereadMs = { 10: 10_000, 300: 60_000 };

export interface Shown<P> {
  points: readonly P[];
  range: Range;
  until: number;
}

interface HistoryProps<P> {
  read: (request: { since: number; step: 10 | 300 }) => Promise<P[]>;
  /** Read again when this changes. */
  of: string;
  render: (shown: Shown<P>) => ComponentChildren;
}

export function History<P extends { at: number }>({ read, of, render }: HistoryProps<P>) {
  const [range, setRange] = useState<Range>(ranges[0]);
  const { value, problem, reload } = useQuery(async () => {
    const now = Date.now();
    const points = await read({ since: now - range.spanMs, step: range.step });
    return { points, range, until: Math.max(now, ...points.map(({ at }) => at)) };
  }, [of, range]);
  useEffect(() => {
    const timer = setInterval(reload, rereadMs[range.step]);
    return () => clearInterval(timer);
  }, [range, reload]);
  return (
    <>
      <fieldset class="ranges">
        <legend class="unseen">Range</legend>
        {ranges.map((each) => (
          <button
            key={each.value}
            type="button"
            class="count"
            aria-pressed={each === range}
            onClick={() => setRange(each)}
          >
            {each.name}
          </button>
        ))}
      </fieldset>
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={reload} />
      ) : value === undefined ? (
        <Skeleton />
      ) : value.points.length === 0 ? (
        <Empty icon="gauge" title="Nothing was measured in this time">
          <p>A point is made each {range.step === 10 ? "10 seconds" : "5 minutes"} of a run.</p>
        </Empty>
      ) : (
        <div class="plots">{render(value)}</div>
      )}
    </>
  );
}
