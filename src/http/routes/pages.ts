/**
 * The pages for browsers: the dashboard, and the API reference made from the service's own OpenAPI document. Both load
 * nothing from other hosts and cannot be framed.
 */
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import fastifyStatic from "@fastify/static";
import swaggerUi from "@fastify/swagger-ui";
import type { FastifyReply } from "fastify";
import Type from "typebox";
import { CapsuleError } from "../../wire/errors.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

const contentPolicy = [
  "default-src 'self'",
  "img-src 'self' data:",
  "object-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const packageType = "application/gzip";
const Package = { schema: Type.Unsafe<Buffer>({ type: "string", format: "binary" }) };

/** Where the dashboard is not built. */
const placeholderPage = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Capsule</title>
<h1>Capsule is running</h1>
<p>The dashboard is not built here; <code>./dev up</code> builds it. The API is described at <a href="/docs">/docs</a>.</p>
</html>
`;

export const dashboardSection: Section = { chapter: "Service", register: registerDashboard };
export const sdkSection: Section = { chapter: "Service", register: registerSdk };
export const referenceSection: Section = { chapter: "Service", register: registerReference };

/** Files under `assets/` have a hash of their content in their name and are cached for a year; the page is revalidated. */
function registerDashboard(app: App, { web: folder }: RouteContext): void {
  const options = { config: { open: true }, schema: { hide: true } } as const;
  protectPages(app);
  app.register(fastifyStatic, { serve: false, dotfiles: "ignore" });

  app.get("/", options, (_request, reply) => {
    if (existsSync(join(folder, "index.html"))) sendRevalidated("index.html", reply);
    else reply.type("text/html; charset=utf-8").send(placeholderPage);
  });
  app.get("/icon.svg", options, (_request, reply) => sendRevalidated("icon.svg", reply));
  app.get("/assets/*", options, ({ params }, reply) => {
    const { "*": name } = params as { "*": string };
    reply.sendFile(name, join(folder, "assets"), { immutable: true, maxAge: "365d" });
  });

  function sendRevalidated(name: string, reply: FastifyReply): void {
    reply.header("cache-control", "no-cache").sendFile(name, folder, { cacheControl: false });
  }
}

/** Swagger UI has dark colours under this class of the document. */
const followColorScheme = `
const scheme = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", scheme.matches);
scheme.addEventListener("change", follow);
follow();
`;

/** On a phone the introduction's tables are wider than the page. */
const scrollWideTables = ".swagger-ui .renderedMarkdown { overflow-x: auto; }";

/** The SDK as an npm package, built beside the dashboard. */
function registerSdk(app: App, { web: folder }: RouteContext): void {
  app.get(
    "/sdk.tgz",
    {
      config: { open: true, headers: ["Content-Disposition"], refuses: ["not_found"] },
      schema: {
        operationId: "getSdk",
        summary: "The SDK as an npm package, for npm install",
        response: { 200: { content: { [packageType]: Package } } },
      },
    },
    async (_request, reply) => {
      const bytes = await readFile(join(folder, "sdk.tgz")).catch(() => {
        throw new CapsuleError("not_found", "the SDK's package is not built here; ./dev up builds it");
      });
      reply.type(packageType).header("content-disposition", 'attachment; filename="capsule-sdk.tgz"');
      return reply.send(bytes);
    },
  );
}

/** /docs. */
function registerReference(app: App): void {
  protectPages(app);
  app.addHook("onRoute", (route) => {
    route.config = { ...route.config, open: true };
  });
  app.register(swaggerUi, {
    routePrefix: "/docs",
    theme: {
      title: "Capsule API",
      js: [{ filename: "color-scheme.js", content: followColorScheme }],
      css: [{ filename: "narrow.css", content: scrollWideTables }],
    },
    logo: { type: "image/svg+xml", content: "" },
    uiConfig: {
      layout: "BaseLayout",
      docExpansion: "list",
      tryItOutEnabled: true,
      displayRequestDuration: true,
      persistAuthorization: false,
      defaultModelsExpandDepth: 0,
    },
  });
}

/** Headers that restrict the browser. Call before the pages of this context are declared. */
function protectPages(app: App): void {
  app.addHook("onRequest", (_request, reply, done) => {
    reply
      .header("content-security-policy", contentPolicy)
      .header("cross-origin-opener-policy", "same-origin")
      .header("referrer-policy", "no-referrer")
      .header("x-content-type-options", "nosniff")
      .header("x-frame-options", "DENY");
    done();
  });
}
