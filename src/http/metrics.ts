/** Measures each request for Prometheus, and counts the refusals of each team; a request that another host has answered is counted there. routes/metrics.ts and capsule-metrics.ts serve the metrics. */
import { isAnsweredElsewhere } from "./pass-on.ts";
import type { App } from "./route.ts";
import type { CapsulesService } from "./services.ts";

export interface MetricsService {
  requestEnded(method: string, route: string, status: number, seconds: number): void;
  /** A request at a port's URL; undefined: its client was gone before an answer. */
  portRequestEnded(status: number | undefined): void;
  /** `in`: to the capsule. */
  portBytesMoved(direction: "in" | "out", bytes: number): void;
  /** A request at a port's URL has begun the resume of its capsule. */
  portWoke(): void;
  /** A WebSocket of the API was closed, by either side. */
  socketClosed(code: number): void;
  /** All metrics in the format of `contentType`. */
  text(): Promise<string>;
  contentType: string;
}

const refusals: ReadonlySet<number> = new Set([429, 503, 507]);

/** Call before the routes are declared. Without `metrics`, refusals alone are counted. */
export function countRequests(app: App, { metrics: ofTeams }: CapsulesService, metrics?: MetricsService): void {
  app.addHook("onResponse", (request, reply, done) => {
    if (isAnsweredElsewhere(request)) {
      done();
      return;
    }
    const { url = "none", config } = request.routeOptions;
    if (metrics !== undefined && config.endless !== true) {
      const route = request.is404 ? "none" : url;
      metrics.requestEnded(request.method, route, reply.statusCode, reply.elapsedTime / 1_000);
    }
    const identity = request.identity as typeof request.identity | undefined;
    if (identity !== undefined && refusals.has(reply.statusCode)) ofTeams.refused(identity.teamId);
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
