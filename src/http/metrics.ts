/** Measures each request for Prometheus; routes/metrics.ts serves the metrics. */
import type { App } from "./route.ts";

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
