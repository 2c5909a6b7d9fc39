/** Capsules, creates and refusals of the team over time. */
import { useMemo } from "preact/hooks";
import type { TeamMetric } from "../../src/sdk/sdk.ts";
import { History, type Shown } from "../parts/history.tsx";
import { Plot } from "../parts/plot.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { columnsOf } from "../state/series.ts";

export function TeamHistory() {
  const { client, session } = useDashboard();
  return (
    <History
      of={session.team}
      read={(request) => client.metrics(request)}
      render={(shown) => <TeamPlots {...shown} />}
    />
  );
}

const capsules = [({ running }: TeamMetric) => running, ({ paused }: TeamMetric) => paused];
const creates = [({ creates }: TeamMetric) => creates];
const times = [({ createMsP50 }: TeamMetric) => createMsP50, ({ createMsP95 }: TeamMetric) => createMsP95];
const refusals = [({ refused }: TeamMetric) => refused];

function TeamPlots({ points, range, until }: Shown<TeamMetric>) {
  const [counts, made, took, refused] = useMemo(
    () => [capsules, creates, times, refusals].map((lines) => columnsOf(points, range.step * 1_000, lines)),
    [points],
  );
  const shared = { range, until };
  const span = range.step === 10 ? "10 s" : "5 minutes";
  return (
    <>
      <Plot
        {...shared}
        title="Capsules"
        names={["Running", "Paused"]}
        columns={counts!}
        format={plain}
        steps={wholes}
      />
      <Plot
        {...shared}
        title={`Creates in ${span}`}
        names={["Creates"]}
        columns={made!}
        format={plain}
        steps={wholes}
      />
      <Plot
        {...shared}
        title="Time of a create"
        names={["Median", "95th percentile"]}
        columns={took!}
        format={time}
        isSparse
      />
      <Plot
        {...shared}
        title={`Refusals in ${span}`}
        names={["Refused"]}
        columns={refused!}
        format={plain}
        steps={wholes}
      />
    </>
  );
}

/** Whole numbers only, since a count has no halves. */
const wholes = Array.from({ length: 7 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();

const plain = (value: number) => value.toLocaleString("en", { maximumFractionDigits: 1 });

function time(ms: number): string {
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`;
}
