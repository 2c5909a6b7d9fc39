/**
 * The dashboard's files. Those under `assets/` carry a hash of their content in their name, so a browser may keep them
 * for ever; the page that names them is asked for anew each time.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import fastifyStatic from "@fastify/static";
import type { FastifyReply } from "fastify";
import type { App } from "../route.ts";
import { protectPages } from "./page-headers.ts";

const config = { open: true } as const;
const schema = { hide: true };

/** Shown where the dashboard was not built: the service is whole without it. */
const bare = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Capsule</title>
<h1>Capsule is running</h1>
<p>The dashboard is not built here; <code>./dev up</code> builds it. The API is described at <a href="/docs">/docs</a>.</p>
</html>
`;

export function staticRoutes(app: App, folder: string): void {
  protectPages(app);
  app.register(fastifyStatic, { serve: false, dotfiles: "ignore" });

  app.get("/", { config, schema }, (_request, reply) => {
    if (existsSync(join(folder, "index.html"))) sendFresh("index.html", reply);
    else reply.type("text/html; charset=utf-8").send(bare);
  });
  app.get("/icon.svg", { config, schema }, (_request, reply) => sendFresh("icon.svg", reply));
  app.get("/assets/*", { config, schema }, ({ params }, reply) => {
    const { "*": name } = params as { "*": string };
    reply.sendFile(name, join(folder, "assets"), { immutable: true, maxAge: "365d" });
  });

  function sendFresh(name: string, reply: FastifyReply): void {
    reply.header("cache-control", "no-cache").sendFile(name, folder, { cacheControl: false });
  }
}
