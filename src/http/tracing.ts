/** Requests as spans. Everything a request goes on to do, down to the VM, runs inside its own. */
import type { App } from "./route.ts";
import type { TracingService } from "./services.ts";

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
    // A WebSocket's answer is detached from its socket, and the span is as long as the conversation.
    const over = config.socket === true ? request.raw.socket : reply.raw;
    over.once("close", () => end(config.socket === true && !reply.sent ? 101 : reply.statusCode));
  });
}
