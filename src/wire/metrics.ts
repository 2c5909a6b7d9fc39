/** Metrics of a capsule and of a team, as series of points. */
import Type, { type Static } from "typebox";
import { Nullable } from "./schema.ts";

/** Seconds between two points, by which the hour or the day is chosen. */
export const metricSteps = [10, 300] as const;
export type MetricStep = (typeof metricSteps)[number];

export const MetricsQuery = Type.Object({
  since: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      default: 0,
      description: "Unix time in milliseconds: only points later than this.",
    }),
  ),
  step: Type.Optional(
    Type.Unsafe<MetricStep>({
      type: "integer",
      enum: [...metricSteps],
      default: 10,
      description: "10: the last hour, a point each 10 s. 300: the last day, a point each 5 minutes.",
    }),
  ),
});

const At = Type.Integer({ description: "Unix time in milliseconds." });
const Mb = (description: string) => Nullable(Type.Number({ description: `${description}, MiB; null: not known.` }));
const Milliseconds = (share: string) =>
  Nullable(
    Type.Number({ description: `${share} of the creates' times to running, milliseconds; null: none got there.` }),
  );

export const CapsuleMetric = Type.Object(
  {
    at: At,
    cpu_pct: Type.Number({ description: "Percent of one CPU; 200: two are busy." }),
    vcpus: Type.Integer(),
    memory_used_mb: Mb("Without cache that can be dropped"),
    memory_total_mb: Mb("Memory that the guest's kernel has"),
    disk_used_mb: Mb("Of the root file system"),
    disk_total_mb: Mb("The root file system"),
  },
  { title: "CapsuleMetric" },
);
export type CapsuleMetric = Static<typeof CapsuleMetric>;

export const TeamMetric = Type.Object(
  {
    at: At,
    running: Type.Number({ description: "Capsules in this status; with step=300 the mean." }),
    paused: Type.Number(),
    creates: Type.Integer({ description: "Since the point before." }),
    create_ms_p50: Milliseconds("Median"),
    create_ms_p95: Milliseconds("95th percentile"),
    refused: Type.Integer({ description: "Requests that were answered by 429, 503 or 507 since the point before." }),
  },
  { title: "TeamMetric" },
);
export type TeamMetric = Static<typeof TeamMetric>;

export const CapsuleMetrics = Type.Array(CapsuleMetric, { description: "Oldest first." });
export const TeamMetrics = Type.Array(TeamMetric, { description: "Oldest first." });
