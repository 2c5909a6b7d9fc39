/** For probes: 200 when the service can make capsules, 503 while it cannot. */
import { Health } from "../../wire/health.ts";
import type { App, RouteContext } from "../route.ts";

export function healthRoutes(app: App, { services }: RouteContext): void {
  app.get(
    "/healthz",
    { config: { open: true }, schema: { summary: "Health", response: { 200: Health, 503: Health } } },
    (_request, reply) => {
      const health = services.health.health();
      reply.code(health.ready ? 200 : 503).send(health);
    },
  );
}
