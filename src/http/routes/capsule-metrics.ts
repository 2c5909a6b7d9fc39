/** Metrics of one capsule and of the team. metrics.ts has those of the service, for Prometheus. */
import type { Point } from "../../capsules/metrics/point-ring.ts";
import { CapsuleMetric, CapsuleMetrics, MetricsQuery, TeamMetric, TeamMetrics } from "../../wire/metrics.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

export const capsuleMetricsSection: Section = { chapter: "Capsules", register };

function register(app: App, { services: { capsules } }: RouteContext): void {
  const { metrics } = capsules;
  app.get(
    "/capsules/:id/metrics",
    {
      config: { action: "read" },
      schema: {
        operationId: "getCapsuleMetrics",
        summary: "Get a capsule's use of CPU, memory and disk over time",
        params: CapsuleParams,
        querystring: MetricsQuery,
        response: { 200: CapsuleMetrics },
      },
    },
    async ({ params, query }) => {
      const points = await metrics.ofCapsule(params.id, query.step ?? 10, query.since ?? 0);
      return points.map((point) => named<CapsuleMetric>(point, CapsuleMetric));
    },
  );

  app.get(
    "/metrics",
    {
      schema: {
        operationId: "getTeamMetrics",
        summary: "Get the team's capsules, creates and refusals over time",
        querystring: MetricsQuery,
        response: { 200: TeamMetrics },
      },
    },
    async ({ identity, query }) => {
      const points = metrics.ofTeam(identity.teamId, query.step ?? 10, query.since ?? 0);
      return points.map((point) => named<TeamMetric>(point, TeamMetric));
    },
  );
}

/** The values of a point stand in the order of the fields behind `at`. */
function named<T>({ at, values }: Point, { properties }: { properties: object }): T {
  const [, ...names] = Object.keys(properties);
  return Object.fromEntries([["at", at], ...names.map((name, index) => [name, values[index] ?? null])]) as T;
}
