/** One span per request. All work for the request, down to the VM, runs inside it. */
import type { App } from "./route.ts";

export interface TracingService {
  /** Calls `next` inside the request's span; the returned function ends the span. Must not throw. */
  requestBegan(request: TracedRequest, next: () => void): (status: number) => void;
}

export interface TracedRequest {
  method: string;
  /** As declared; `none` for an unknown path. */
  route: string;
  id: string;
  capsuleId: string | undefined;
  headers: Record<string, string | string[] | undefined>;
}

/** Call before the gate, so that refused requests are traced too. */
export function traceRequests(app: App, tracing: TracingService): void {
  app.addHook("onRequest", (request, reply, next) => {
    const { url, config } = request.routeOptions;
    const { id: capsuleId } = (request.params ?? {}) as { id?: string };
    const end = tracing.requestBegan(
      {
        method: request.method,
        route: request.is404 || url === undefined ? "none" : url,
        id: request.id,
        capsuleId: config.action === undefined ? undefined : capsuleId,
        headers: request.headers,
      },
      next,
    );
    // A WebSocket's response is detached from its socket, and its span lasts until the socket closes.
    const ending = config.socket === true ? request.raw.socket : reply.raw;
    ending.once("close", () => end(config.socket === true && !reply.sent ? 101 : reply.statusCode));
  });
}
