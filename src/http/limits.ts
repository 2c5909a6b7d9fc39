/** The limits this service was started with, for clients to read instead of to run into. */
import { Limits } from "../wire/limits.ts";
import type { App, Section } from "./section.ts";

export function limitRoutes(app: App, { limits }: Section): void {
  app.get("/limits", { schema: { summary: "Read the limits", response: { 200: Limits } } }, (_request, reply) => {
    reply.send(limits);
  });
}
