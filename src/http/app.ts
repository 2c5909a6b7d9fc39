/**
 * Builds the HTTP server: request → gate → route → service → response. The caller starts and stops it.
 */
import type { ServerOptions as HttpOptions, IncomingMessage } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import fastify, { type FastifyBaseLogger, type FastifyReply, type FastifyRequest, LogController } from "fastify";
import type { Logger } from "pino";
import type { PortDomain } from "../network/port-domain.ts";
import { noProxies, type Proxies } from "../network/proxies.ts";
import type { Limits } from "../wire/limits.ts";
import { AnswerBudget } from "./access/answer-budget.ts";
import { AnswerTurns } from "./access/answer-turns.ts";
import { Authentication } from "./access/authentication.ts";
import { ChunkTurns } from "./access/chunk-turns.ts";
import { ConnectionLimit } from "./access/connection-limit.ts";
import { Cors } from "./access/cors.ts";
import { InFlightLimiter, TeamSemaphore } from "./access/in-flight.ts";
import { localCallers } from "./access/local-caller.ts";
import { networkOf } from "./access/network.ts";
import { OneTimeTokens } from "./access/one-time-tokens.ts";
import { PortPlaces } from "./access/port-places.ts";
import { ReceiveBudget } from "./access/receive-budget.ts";
import { SignedUrls } from "./access/signed-urls.ts";
import { TeamTurns, takeTurns } from "./access/team-turns.ts";
import { keepAudit } from "./audit-trail.ts";
import { CapsuleBodies } from "./capsule-bodies.ts";
import { closeAccepted, endWhenAnswered } from "./closing-connections.ts";
import { refuseMalformedRequest, sendError } from "./errors.ts";
import { deferContinue } from "./expect-continue.ts";
import { fixedLimits } from "./fixed-limits.ts";
import type { Forwarding } from "./forwarding.ts";
import { currentRefusal, guardRoutes, nothingAt, refuseUnroutable } from "./gate.ts";
import { gzipStreamsMax } from "./gzip.ts";
import { answerRepeats } from "./idempotency.ts";
import { nameIgnoredFields } from "./ignored-fields.ts";
import { acceptJson, announcesBody } from "./json-body.ts";
import { ListAnswers } from "./list-answers.ts";
import { logResponses } from "./log.ts";
import { countRequests, type ServedMetrics } from "./metrics.ts";
import { describeApi } from "./openapi.ts";
import { nameCallers, type Upgrades } from "./pass-on.ts";
import { handleOneByOne } from "./pipelining.ts";
import { Placing } from "./placing.ts";
import { PortHosts } from "./ports/port-hosts.ts";
import { isSplicable, PortProxy, type PortProxyOptions } from "./ports/port-proxy.ts";
import { PortReports } from "./ports/port-reports.ts";
import { parseQuery } from "./query.ts";
import { RefusedBodies } from "./refused-bodies.ts";
import { newRequestId } from "./request-id.ts";
import type { App } from "./route.ts";
import type { RouteContext } from "./section.ts";
import { registerSections } from "./sections.ts";
import type { Services } from "./services.ts";
import { closeSlowReaders } from "./slow-readers.ts";
import { Sockets } from "./sockets/upgrades.ts";
import type { Certificate } from "./tls.ts";
import { type TracingService, traceRequests } from "./tracing.ts";
import { formMaxBytes } from "./uploads.ts";
import { validatorCompiler } from "./validation.ts";

export interface ServerOptions {
  limits: Limits;
  logger: Logger;
  /** The service's version, for the OpenAPI document. */
  version: string;
  /** Folder of the built dashboard; may be missing. */
  web: string;
  /** undefined: no metrics. */
  metrics?: ServedMetrics | undefined;
  tracing?: TracingService | undefined;
  /** The proxies whose X-Forwarded-For is trusted. Default: none. */
  proxies?: Proxies;
  /** Origins whose pages may use the API. Default: none but the server's own. */
  corsOrigins?: readonly string[];
  /** Below which ports have their URLs. Default: localhost. */
  portDomain?: PortDomain;
  /** The port in them as long as it does not listen. */
  port?: number;
  /** undefined: no TLS. */
  certificate?: Certificate | undefined;
  /** Time for requests in progress to end when the server closes. */
  drainMs?: number;
  /** Longest idle time of a connection between two requests. */
  keepAliveMs?: number;
  /** Time without progress after which a client that does not read its response is disconnected. */
  stallMs?: number;
  /** Bytes that clients have sent in part. */
  received?: ReceiveBudget;
  /** The way to other hosts; undefined: there are none. */
  forwarding?: Forwarding | undefined;
  /** The name of this host in its cluster; undefined: it is alone. */
  hostName?: string | undefined;
}

const headersMaxBytes = 16 * 1024;
const defaultKeepAliveMs = 3_660_000;
const defaultPort = 8_080;
const defaultStallMs = 120_000;

/**
 * A response has no time limit, since a command may run for hours without output. Headers have their limit here, JSON
 * bodies in json-body.ts, uploads in uploads.ts.
 */
const timing = {
  requestTimeout: 0,
  headersTimeout: 20_000,
  connectionsCheckingInterval: 5_000,
};
/** TCP keep-alive finds clients that vanished, and keeps the entries of address translators on the way. */
const tcpKeepAlive = { keepAlive: true, keepAliveInitialDelay: 60_000 };

/** Options of Node's server, with or without TLS. */
function transport(certificate: Certificate | undefined, hosts: PortHosts): { http: HttpOptions } {
  const options: HttpOptions = {
    ...timing,
    ...tcpKeepAlive,
    maxHeaderSize: headersMaxBytes,
    // Node makes no stream for a request without a body: call `announcesBody` before reading one.
    optimizeEmptyRequests: true,
    // Node would refuse a missing Host header itself, not in JSON; see gate.ts.
    requireHostHeader: false,
    shouldUpgradeCallback: (request) =>
      hosts.destinationOf(request).kind === "port" ? isSplicable(request) : asksForWebSocket(request),
  };
  if (certificate === undefined) return { http: options };
  const https = { ...options, ...certificate, handshakeTimeout: timing.headersTimeout };
  return { https } as unknown as { http: HttpOptions };
}

/** HTTP allows a server to ignore other upgrades, such as to HTTP/2, and to serve the request. */
function asksForWebSocket({ method, headers }: IncomingMessage): boolean {
  return method === "GET" && headers.upgrade?.toLowerCase() === "websocket";
}

export function buildServer(services: Services, options: ServerOptions): App {
  const { limits, logger, version, metrics, tracing, certificate, forwarding } = options;
  const [tickets, connections] = [OneTimeTokens.socketTickets(), connectionLimit(options)];
  const signedUrls = new SignedUrls(services);
  const { teams, unheardKeys } = services;
  const access = { teams, tickets, signedUrls, connections, forwarding, unheardKeys };
  const authentication = new Authentication(access, limits);
  const [inFlight, cors] = [new InFlightLimiter(limits.requests_max), new Cors(options.corsOrigins ?? [])];
  const refusedBodies = new RefusedBodies(limits.file_write_max_bytes + formMaxBytes);
  const watchBody = (request: FastifyRequest, reply: FastifyReply) => {
    const { raw, ip, routeOptions } = request;
    if (announcesBody(raw)) refusedBodies.watch(raw, reply.raw, networkOf(ip), routeOptions.bodyLimit ?? 0);
  };
  const [turns, answerTurns] = [new TeamTurns(), new AnswerTurns()];
  const received = options.received ?? new ReceiveBudget();
  const [chunkTurns, ports] = [new ChunkTurns(), new PortPlaces(limits)];
  const hosts = new PortHosts(portDomainOf(options));
  const upgrades: Upgrades = new WeakMap();
  const app: App = fastify({
    loggerInstance: logger as FastifyBaseLogger,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: "requestId" }),
    genReqId: (raw) => forwarding?.callerOf(raw)?.requestId ?? newRequestId(),
    trustProxy: options.proxies?.trust ?? false,
    bodyLimit: limits.body_max_bytes,
    keepAliveTimeout: connections.keylessKeepAliveMs,
    return503OnClosing: false,
    // An id or name of any length gets its own 404; only the size of all headers bounds it.
    routerOptions: { maxParamLength: headersMaxBytes, querystringParser: parseQuery },
    ...transport(certificate, hosts),
    frameworkErrors: (error, request, reply) => {
      watchBody(request, reply);
      refuseUnroutable(error, request, reply, { authentication, cors, turns, hasTls: certificate !== undefined });
    },
    clientErrorHandler: (error, socket) => refuseMalformedRequest(error, socket, refusedBodies),
  }).withTypeProvider<TypeBoxTypeProvider>();

  const proxy = portProxy(app, services, options, {
    ...{ authentication, connections, hosts, places: ports, turns, chunkTurns, refusedBodies, forwarding },
  });
  boundConnections(app, connections, options, chunkTurns);
  logResponses(app, logger);
  if (forwarding !== undefined) nameCallers(app, forwarding);
  app.addHook("onRequest", (request, reply, done) => {
    watchBody(request, reply);
    done();
  });
  countRequests(app, services.capsules, metrics?.service);
  if (tracing !== undefined) traceRequests(app, tracing);
  const checks = { services, authentication, inFlight, cors, turns, hosts, hasTls: certificate !== undefined };
  guardRoutes(app, { ...checks, forwarding, upgrades });
  const placing = forwarding === undefined ? undefined : new Placing({ forwarding, turns });
  placing?.attachTo(app);
  app.setErrorHandler((error, request, reply) => {
    const answer = (refusal: unknown) => sendError(currentRefusal(refusal, request, services), request, reply);
    if (placing?.takes(error, request, reply, answer) !== true) answer(error);
  });
  app.setNotFoundHandler((request, reply) => sendError(nothingAt(request.url), request, reply));
  app.setValidatorCompiler(validatorCompiler);
  acceptJson(app, { maxBytes: limits.body_max_bytes, turns, received });
  takeTurns(app, turns);
  answerTurns.attachTo(app);
  nameIgnoredFields(app);
  describeApi(app, version);
  keepAudit(app, services.audit);
  answerRepeats(app, services.idempotency, turns);
  const admission = { authentication, signedUrls, inFlight, connections, turns, answerTurns, received };
  const issuing = { tickets: forwarding?.tickets ?? tickets, sharedLinks: forwarding?.signInLinks };
  registerRoutes(app, services, options, { ...admission, ...issuing, chunkTurns, ports, proxy, upgrades });
  return app;
}

/** Ends, bounds and watches the connections of the server. */
function boundConnections(
  app: App,
  connections: ConnectionLimit,
  { drainMs = 10_000, stallMs = defaultStallMs, forwarding }: ServerOptions,
  chunkTurns: ChunkTurns,
): void {
  connections.attachTo(app.server);
  deferContinue(app.server);
  const endConnections = endWhenAnswered(app.server);
  app.addHook("preClose", async () => endConnections(drainMs));
  closeSlowReaders(app.server, stallMs);
  handleOneByOne(app.server);
  forwarding?.attachTo({
    ...{ server: app.server, chunkTurns, stallMs, drainMs },
    onClose: (close) =>
      app.addHook("preClose", (done) => {
        close();
        done();
      }),
    untilClosed: (ended) => app.addHook("onClose", ended),
  });
}

type ProxyParts =
  | "forwarding"
  | "authentication"
  | "connections"
  | "hosts"
  | "places"
  | "turns"
  | "chunkTurns"
  | "refusedBodies";

/** Before all routes. */
function portProxy(
  app: App,
  services: Services,
  options: ServerOptions,
  parts: Pick<PortProxyOptions, ProxyParts>,
): PortProxy {
  const { certificate, limits, logger, metrics } = options;
  const proxy = new PortProxy({
    ...{ ...parts, services, outside: outsideOf(options.portDomain), hasTls: certificate !== undefined },
    ...{ proxies: options.proxies ?? noProxies, reports: new PortReports(metrics?.service, logger), log: app.log },
    publicWakesMax: limits.public_wakes_per_hour,
  });
  proxy.attachTo(app);
  return proxy;
}

function portDomainOf({ portDomain }: ServerOptions): string {
  return portDomain?.host ?? "localhost";
}

/** Where a proxy in front of the server decides the scheme and the port of the URLs of ports. */
function outsideOf(domain: PortDomain | undefined) {
  return domain?.scheme === undefined ? undefined : { scheme: domain.scheme, port: domain.port };
}

function connectionLimit(options: ServerOptions): ConnectionLimit {
  const { connections_max, connections_per_address_max, connections_per_sec } = options.limits;
  return new ConnectionLimit({
    ...{ openMax: connections_max, max: connections_per_address_max, perSec: connections_per_sec },
    ...{ proxies: options.proxies ?? noProxies, keepAliveMs: options.keepAliveMs ?? defaultKeepAliveMs },
  });
}

type Shared =
  | "authentication"
  | "tickets"
  | "sharedLinks"
  | "signedUrls"
  | "inFlight"
  | "turns"
  | "answerTurns"
  | "chunkTurns"
  | "ports";
interface Access extends Pick<RouteContext, Shared> {
  connections: ConnectionLimit;
  received: ReceiveBudget;
  proxy: PortProxy;
  upgrades: Upgrades;
}

/** Call when all hooks are added. */
function registerRoutes(
  app: App,
  services: Services,
  options: ServerOptions,
  { connections, received, proxy, upgrades, ...access }: Access,
): void {
  const { limits, metrics, web, certificate, portDomain = { host: "localhost" } } = options;
  const { keylessKeepAliveMs } = connections;
  const keepAliveMs = options.keepAliveMs ?? defaultKeepAliveMs;
  const stallMs = options.stallMs ?? defaultStallMs;
  const onClosed = (code: number) => metrics?.service.socketClosed(code);
  const sockets = new Sockets(services, limits, { turns: access.turns, received, upgrades, onClosed });
  sockets.attachTo(app, proxy);
  registerSections(app, {
    ...access,
    services,
    limits,
    fixedLimits: fixedLimits(limits, {
      ...{ headersMaxBytes, headersMs: timing.headersTimeout, keepAliveMs, keylessKeepAliveMs, stallMs },
    }),
    answers: new AnswerBudget(limits.answers_max_bytes),
    gzipSlots: new TeamSemaphore(gzipStreamsMax),
    lists: new ListAnswers(access.authentication),
    isLocal: localCallers(options.proxies ?? noProxies),
    sockets,
    bodies: new CapsuleBodies(app.server, {
      ...{ domain: portDomain, hasTls: certificate !== undefined, port: options.port ?? defaultPort },
      hostName: options.hostName ?? null,
    }),
    portDomain: portDomain.host,
    metrics,
    web,
  });
  app.addHook("preClose", () => closeAccepted(app.server)); // last, behind what takes time
}
