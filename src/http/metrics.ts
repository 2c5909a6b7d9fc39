/** Prometheus metrics: measures each request, and serves the metrics to permitted addresses. */
import Type from "typebox";
import { CapsuleError } from "../wire/errors.ts";
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

export function metricsRoutes(app: App, metrics: MetricsService, to: "loopback" | "any"): void {
  app.get(
    "/metrics",
    {
      config: { open: true, refuses: ["forbidden"] },
      schema: {
        summary: "Metrics for Prometheus",
        response: { 200: { content: { [textType]: { schema: Type.String() } } } },
      },
    },
    async ({ ip, headers }, reply) => {
      // A request by a proxy on this machine comes from another address.
      const isLocal = isLoopback(ip) && headers["x-forwarded-for"] === undefined && headers.forwarded === undefined;
      if (to === "loopback" && !isLocal) {
        throw new CapsuleError(
          "forbidden",
          "metrics are served to this machine only; CAPSULE_METRICS=any serves them to every address",
        );
      }
      const text = await metrics.text();
      return reply.header("content-type", metrics.contentType).send(text);
    },
  );
}

function isLoopback(address: string): boolean {
  return /^(::ffff:)?127\./.test(address) || address === "::1";
}
