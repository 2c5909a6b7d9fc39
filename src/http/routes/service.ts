/** The state of the service: health for probes, limits and their use for clients. */
import { Health } from "../../wire/health.ts";
import { LimitsAndUsage } from "../../wire/limits.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

export const healthSection: Section = { chapter: "Service", register: registerHealth };
export const limitsSection: Section = { chapter: "Service", register: registerLimits };

/** 200 while the service can make capsules, 503 while it cannot. */
function registerHealth(app: App, { services: { health }, authentication, isLocal, portDomain }: RouteContext): void {
  app.get(
    "/healthz",
    {
      config: { open: true, refuses: ["quota_exceeded"] },
      schema: { operationId: "getHealth", summary: "Health", response: { 200: Health, 503: Health } },
    },
    async (request, reply) => {
      const isKnown = isLocal(request) || authentication.hasKey(request);
      const reasons = await health.reasons();
      const ready = reasons.length === 0;
      const away = health.away?.() ?? [];
      const network = { ...health.network(), port_domain: portDomain };
      const creates = ready && away.length === 0;
      if (!isKnown) return reply.code(ready ? 200 : 503).send({ ready });
      const told = [...reasons, ...away, ...(health.warnings?.() ?? [])];
      const body = { ready, creates, reasons: told, ...health.state(), network };
      return reply.code(ready ? 200 : 503).send(body);
    },
  );
}

function registerLimits(app: App, { services, limits, fixedLimits, sockets, inFlight }: RouteContext): void {
  app.get(
    "/limits",
    {
      schema: {
        operationId: "getLimits",
        summary: "Get the limits and the team's usage",
        description:
          "In a cluster the quotas of a team are those of all hosts together. Rates, connections, requests under way and bytes are counted by each host.",
        response: { 200: LimitsAndUsage },
      },
    },
    async ({ identity: { teamId } }, reply) => {
      const used = await services.capsules.usage(teamId);
      return reply.send({
        ...limits,
        ...fixedLimits,
        usage: {
          capsules: used.capsules,
          running_vcpus: used.runningVcpus,
          running_memory_mb: used.runningMemoryMb,
          disk_bytes: used.diskBytes,
          templates: used.templates,
          sockets: sockets.countOf(teamId),
          requests: inFlight.countOf(teamId),
        },
      });
    },
  );
}
