/** The limits this service was started with, and what the team has used up of them: to read instead of to run into. */
import { LimitsAndUsage } from "../../wire/limits.ts";
import type { InFlightLimiter } from "../access/in-flight.ts";
import type { App, RouteContext } from "../route.ts";
import type { Sockets } from "../sockets/upgrades.ts";

export function limitRoutes(
  app: App,
  { services, limits }: RouteContext,
  sockets: Sockets,
  crowds: InFlightLimiter,
): void {
  app.get(
    "/limits",
    { schema: { summary: "Read the limits, and what the team has of them", response: { 200: LimitsAndUsage } } },
    ({ identity: { teamId } }, reply) => {
      const used = services.capsules.usage(teamId);
      reply.send({
        ...limits,
        usage: {
          capsules: used.capsules,
          running_vcpus: used.runningVcpus,
          running_memory_mb: used.runningMemoryMb,
          disk_bytes: used.diskBytes,
          templates: used.templates,
          sockets: sockets.openOf(teamId),
          requests: crowds.of(teamId),
        },
      });
    },
  );
}
