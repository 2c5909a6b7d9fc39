/** Prometheus metrics: measures each request, and serves the metrics to permitted addresses. */
import { createHash, timingSafeEqual } from "node:crypto";
import Type from "typebox";
import { CapsuleError } from "../wire/errors.ts";
import type { IsLocal } from "./access/local-caller.ts";
import type { App } from "./route.ts";

const textType = "text/plain";

export interface MetricsService {
  requestEnded(method: string, route: string, status: number, seconds: number): void;
  /** All metrics in the format of `contentType`. */
  text(): Promise<string>;
  contentType: string;
}

/** Call before the routes are declared. */
export function countRequests(app: App, metrics: MetricsService): void {
  app.addHook("onResponse", (request, reply, done) => {
    const { url = "none", config } = request.routeOptions;
    if (config.endless !== true) {
      const route = request.is404 ? "none" : url;
      metrics.requestEnded(request.method, route, reply.statusCode, reply.elapsedTime / 1_000);
    }
    done();
  });
}

export interface ServedMetrics {
  service: MetricsService;
  /** The addresses that may read them, unless there is a token. */
  to: "loopback" | "any";
  /** The bearer token that a request needs, wherever it comes from. */
  token?: string | undefined;
}

export function metricsRoutes(app: App, { service, to, token }: ServedMetrics, isLocal: IsLocal): void {
  app.get(
    "/metrics",
    {
      config: { open: true, refuses: ["unauthorized", "forbidden"] },
      schema: {
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
