/**
 * The HTTP server, put together: request → gate → section → service → response. It neither listens nor stops by
 * itself; whoever built it does both.
 */
import { randomBytes } from "node:crypto";
import type { ServerOptions as HttpOptions, IncomingMessage } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import fastify, { type FastifyBaseLogger, LogController } from "fastify";
import type { Logger } from "pino";
import type { Limits } from "../wire/limits.ts";
import { Authentication } from "./access/authentication.ts";
import { InFlightLimiter } from "./access/in-flight.ts";
import { Tickets, ticketRoutes } from "./access/tickets.ts";
import { keepAudit } from "./audit-trail.ts";
import { refuseMalformedRequest, sendError } from "./errors.ts";
import { guardRoutes, nothingAt, refuseUnroutable } from "./gate.ts";
import { acceptJson } from "./json-body.ts";
import { KnownPaths } from "./known-paths.ts";
import { logResponses } from "./log.ts";
import { countRequests, metricsRoutes } from "./metrics.ts";
import { describeApi } from "./openapi.ts";
import type { App, RouteContext } from "./route.ts";
import { auditRoutes } from "./routes/audit.ts";
import { capsuleRoutes } from "./routes/capsules.ts";
import { docsPage } from "./routes/docs-page.ts";
import { eventRoutes } from "./routes/events.ts";
import { execRoutes } from "./routes/exec.ts";
import { fileRoutes } from "./routes/files.ts";
import { healthRoutes } from "./routes/health.ts";
import { keyRoutes } from "./routes/keys.ts";
import { limitRoutes } from "./routes/limits.ts";
import { processExitRoute } from "./routes/process-exit.ts";
import { processRoutes } from "./routes/processes.ts";
import { signInRoutes } from "./routes/sign-in.ts";
import { snapshotRoutes } from "./routes/snapshots.ts";
import { staticRoutes } from "./routes/static.ts";
import type { MetricsService, Services, TracingService } from "./services.ts";
import { hangUpOnSlowReaders } from "./slow-readers.ts";
import { attachSocketRoutes } from "./sockets/attach.ts";
import { execSocketRoutes } from "./sockets/exec.ts";
import { ptySocketRoutes } from "./sockets/pty.ts";
import { Sockets } from "./sockets/upgrades.ts";
import type { Certificate } from "./tls.ts";
import { traceRequests } from "./tracing.ts";
import { validatorCompiler } from "./validation.ts";

export interface ServerOptions {
  limits: Limits;
  logger: Logger;
  /** Of the service, for the OpenAPI document. */
  version: string;
  /** Folder of the built dashboard; it need not be there. */
  web: string;
  /** Who counts, and who may read it; undefined: nobody. */
  metrics?: { service: MetricsService; to: "loopback" | "any" } | undefined;
  tracing?: TracingService | undefined;
  /** Whose X-Forwarded-For is believed. */
  trustProxy?: "no" | "loopback";
  /** undefined: no TLS. */
  certificate?: Certificate | undefined;
  /** How long open requests may end by themselves when the server closes. */
  drainMs?: number;
  /** How long a client may leave its answer unread. */
  stallMs?: number;
}

const headersMaxBytes = 16 * 1024;
const requestIdBytes = 16;

/**
 * No limit on how long an answer may take: a silent command of hours is in order. Headers are bounded in time here,
 * JSON bodies where they are read, and uploads by their stalls.
 */
const timing = {
  requestTimeout: 0,
  headersTimeout: 20_000,
  connectionsCheckingInterval: 5_000,
};
const keepAliveMs = 65_000;

/** HTTP with or without TLS, which is all the same from here on. */
function transport(certificate: Certificate | undefined): { http: HttpOptions } {
  const options: HttpOptions = {
    ...timing,
    maxHeaderSize: headersMaxBytes,
    // A request without a body is spared the life of a stream; who reads bodies asks `announcesBody` first.
    optimizeEmptyRequests: true,
    // Node would answer a missing Host header by itself, and not in JSON; we have one host, so it is not missed.
    requireHostHeader: false,
    shouldUpgradeCallback: asksForWebSocket,
  };
  if (certificate === undefined) return { http: options };
  const https = { ...options, ...certificate, handshakeTimeout: timing.headersTimeout };
  return { https } as unknown as { http: HttpOptions };
}

/** Other upgrades, such as HTTP/2's, may be ignored by the standard, and the request is served as it is. */
function asksForWebSocket({ method, headers }: IncomingMessage): boolean {
  return method === "GET" && headers.upgrade?.toLowerCase() === "websocket";
}

export function buildServer(services: Services, options: ServerOptions): App {
  const { limits, logger, version, web, metrics, tracing, certificate, drainMs = 10_000, stallMs = 120_000 } = options;
  const tickets = new Tickets();
  const callers = new Authentication(services.teams, tickets, limits);
  const crowds = new InFlightLimiter(limits.requests_max);
  const app: App = fastify({
    loggerInstance: logger as FastifyBaseLogger,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: "requestId" }),
    genReqId: () => randomBytes(requestIdBytes).toString("hex"),
    trustProxy: options.trustProxy === "loopback" ? "loopback" : false,
    bodyLimit: limits.body_max_bytes,
    keepAliveTimeout: keepAliveMs,
    return503OnClosing: false,
    // No id or name is too long for its own 404: the bound is that of the whole head.
    routerOptions: { maxParamLength: headersMaxBytes },
    ...transport(certificate),
    frameworkErrors: (error, request, reply) =>
      refuseUnroutable(error, request, reply, () => callers.identify(request)),
    clientErrorHandler: refuseMalformedRequest,
  }).withTypeProvider<TypeBoxTypeProvider>();

  const paths = new KnownPaths();
  app.addHook("onRoute", (route) => paths.add(route));
  logResponses(app, logger);
  app.addHook("preClose", (done) => {
    setTimeout(() => app.server.closeAllConnections(), drainMs).unref();
    done();
  });
  // The standard lets a server ignore what it does not know of; Node would refuse it before anyone asked for a key.
  app.server.on("checkExpectation", (request, response) => app.server.emit("request", request, response));
  app.server.maxConnections = limits.connections_max;
  if (metrics !== undefined) countRequests(app, metrics.service);
  if (tracing !== undefined) traceRequests(app, tracing);
  hangUpOnSlowReaders(app.server, stallMs);
  guardRoutes(app, { services, callers, crowds, paths, hasTls: certificate !== undefined });
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  app.setNotFoundHandler((request, reply) => sendError(nothingAt(request.url), request, reply));
  app.setValidatorCompiler(validatorCompiler);
  acceptJson(app, limits.body_max_bytes);

  const sockets = new Sockets(services, limits);
  sockets.attachTo(app);

  describeApi(app, version);
  keepAudit(app, services.audit);
  const section: RouteContext = { services, limits };
  app.register(async (root: App) => healthRoutes(root, section));
  if (metrics !== undefined) app.register(async (root: App) => metricsRoutes(root, metrics.service, metrics.to));
  app.register(async (root: App) => staticRoutes(root, web));
  app.register(async (root: App) => docsPage(root));
  app.register(
    async (v1: App) => {
      const sections = [capsuleRoutes, execRoutes, processRoutes, processExitRoute, fileRoutes, snapshotRoutes];
      for (const routes of sections) routes(v1, section);
      keyRoutes(v1, section);
      eventRoutes(v1, section);
      signInRoutes(v1, section, callers);
      auditRoutes(v1, section);
      limitRoutes(v1, section, sockets, crowds);
      for (const routes of [execSocketRoutes, attachSocketRoutes, ptySocketRoutes]) routes(v1, section, sockets);
      ticketRoutes(v1, tickets);
    },
    { prefix: "/v1" },
  );
  return app;
}
