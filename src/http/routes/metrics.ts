/** Metrics for Prometheus, served to permitted addresses. */
import { createHash, timingSafeEqual } from "node:crypto";
import Type from "typebox";
import { CapsuleError } from "../../wire/errors.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

const textType = "text/plain";

export const metricsSection: Section = { chapter: "Service", register };

function register(app: App, { metrics, isLocal }: RouteContext): void {
  if (metrics === undefined) return;
  const { service, to, token } = metrics;
  app.get(
    "/metrics",
    {
      config: { open: true, refuses: ["unauthorized", "forbidden"] },
      schema: {
        operationId: "getServiceMetrics",
        summary: "Metrics for Prometheus",
        response: { 200: { content: { [textType]: { schema: Type.String() } } } },
      },
    },
    async (request, reply) => {
      if (token !== undefined) requireToken(request.headers.authorization, token);
      else if (to === "loopback" && !isLocal(request)) throw refusal;
      const text = await service.text();
      return reply.header("content-type", service.contentType).send(text);
    },
  );
}

const refusal = new CapsuleError(
  "forbidden",
  "metrics are served to this machine only, and not through a proxy; set CAPSULE_METRICS_TOKEN to read them from elsewhere",
);

function requireToken(authorization: string | undefined, token: string): void {
  const given = /^Bearer +(\S+)$/i.exec(authorization ?? "")?.[1] ?? "";
  if (timingSafeEqual(digestOf(given), digestOf(token))) return;
  throw new CapsuleError("unauthorized", "metrics need the bearer token of CAPSULE_METRICS_TOKEN");
}

function digestOf(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}
