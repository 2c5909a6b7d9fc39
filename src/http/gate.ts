/**
 * The order of checks before any byte of the body is read: key (401), route (404, 405), capsule (404), its state (409).
 * The body's own errors (400) come after, in the route.
 *
 * A route is closed unless it declares `open`, so that a forgotten declaration locks instead of unlocks.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { CapsuleStatus } from "../wire/capsule.ts";
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";
import type { Action } from "../wire/requirements.ts";
import type { Authentication } from "./access/authentication.ts";
import type { Cors } from "./access/cors.ts";
import type { InFlightLimiter } from "./access/in-flight.ts";
import { ownerOf, type TeamTurns } from "./access/team-turns.ts";
import { goneWhile } from "./client-gone.ts";
import { sendError } from "./errors.ts";
import { mayResume, type PassingOn, passOnByBody, passOnOf } from "./pass-on.ts";
import type { PortHosts } from "./ports/port-hosts.ts";
import { releasedOf } from "./released.ts";
import type { App } from "./route.ts";
import type { Services } from "./services.ts";

export interface Gate extends PassingOn {
  services: Services;
  authentication: Authentication;
  inFlight: InFlightLimiter;
  cors: Cors;
  turns: TeamTurns;
  hosts: PortHosts;
  hasTls: boolean;
}

/** Answers a request in place of its route, or lets it wait before its route. */
type Answer = () => void;

type Done = (refusal?: Error) => void;

type Admit = (request: FastifyRequest, reply: FastifyReply, done: Done) => Answer | undefined;

type Check = (request: FastifyRequest, reply: FastifyReply, done: Done, admit: Admit) => void;

const hstsMaxAgeSec = 15_768_000; // half a year

/**
 * Refusals take turns of the event loop as handlers do, since many connections may send requests that are refused. Call before the
 * routes are declared.
 */
export function guardRoutes(app: App, gate: Gate): void {
  const { services, authentication, inFlight, cors, turns, hosts, hasTls } = gate;
  const paths = new KnownPaths();
  const passingOn: PassingOn = { ...gate, released: services.released };
  app.addHook("onRoute", (route) => paths.add(route));
  app.decorateRequest("identity");
  const check: Check = (request, reply, done, admit) => {
    let answer: Answer | undefined;
    try {
      answer = admit(request, reply, done);
    } catch (refusal) {
      answer = () => done(refusal as Error);
    }
    if (answer === undefined) done();
    else turns.enter(ownerOf(request), reply.raw, answer);
  };
  const admit: Admit = (request, reply, done) => {
    requireClearHost(request, hosts);
    if (cors.isPreflight(request)) {
      authentication.admitAnonymous(request);
      return () => cors.answerPreflight(reply);
    }
    // The holder alone can check a signature.
    const isSigned = request.routeOptions.config.signed === true;
    return (isSigned ? atHolder(passingOn, check, admitKey) : withKey)(request, reply, done);
  };
  const withKey: Admit = (request, reply, done) => {
    const learned = needsKey(request) ? authentication.learn(request) : undefined;
    if (learned === undefined) return admitKey(request, reply, done);
    const goOn = goingOn(request, reply, done, { check, admit: admitKey });
    const outcome = learned.then(
      () => undefined,
      (refusal: Error) => refusal,
    );
    return () => void outcome.then(goOn);
  };
  const admitKey: Admit = (request, reply, done) => {
    const { config } = request.routeOptions;
    if (needsKey(request)) {
      request.identity = authentication.identify(request);
      if (config.action !== undefined) nameById(request, services.capsules);
      // WebSockets have a limit of their own.
      if (config.socket !== true) reply.raw.on("close", inFlight.enter(request.identity.teamId));
    } else {
      authentication.admitAnonymous(request);
    }
    if (request.is404) return answerUnrouted(request, reply, paths);
    return config.action === undefined ? undefined : atHolder(passingOn, check, admitNamed)(request, reply, done);
  };
  const admitCapsule = capsuleAdmission(gate);
  /** The capsule may have come here since its name was looked for. */
  const admitNamed: Admit = (...asked) => {
    if (passingOn.forwarding !== undefined) nameById(asked[0], services.capsules);
    return admitCapsule(...asked);
  };
  app.addHook("onRequest", (request, reply, done) => {
    addCommonHeaders(request, reply, hasTls);
    cors.addHeaders(request, reply);
    check(request, reply, done, admit);
  });
  if (gate.forwarding !== undefined) passOnByBody(app, passingOn);
}

/** Requests whose capsule was here when they were let in. */
const permitted = new WeakSet<FastifyRequest>();

/** The capsule of the request is here, or answers by its row. */
function capsuleAdmission({ services, authentication, turns }: Gate): Admit {
  return (request, reply, done) => {
    authentication.useTicket(request);
    const { config } = request.routeOptions;
    const { id } = request.params as { id: string };
    if (releasedOf(request) !== undefined) return undefined;
    const untilResumed = services.capsules.admit(request.identity.teamId, id, config.action!, mayResume(request));
    if (services.released !== undefined) permitted.add(request);
    if (untilResumed === undefined) return undefined;
    return () =>
      goneWhile(request, reply, untilResumed)
        .then(() => requireStill(request, id, { services, authentication }))
        .then(
          () => done(),
          (refusal) => turns.enter(ownerOf(request), reply.raw, () => done(refusal)),
        );
  };
}

/** These checks on a capsule that this host holds, or that none does; otherwise the request is passed on. */
function atHolder(passingOn: PassingOn, check: Check, admit: Admit): Admit {
  return (request, reply, done) => {
    const { id: key } = request.params as { id: string };
    const goOn = goingOn(request, reply, done, { check, admit });
    return passOnOf(request, reply, { key }, { ...passingOn, goOn }) ?? admit(request, reply, done);
  };
}

function needsKey(request: FastifyRequest): boolean {
  return request.is404 ? isVersioned(request.url) : request.routeOptions.config.open !== true;
}

/** Goes on with the checks of a request that has waited, or refuses it, in a turn of its own. */
function goingOn(
  request: FastifyRequest,
  reply: FastifyReply,
  done: Done,
  { check, admit }: { check: Check; admit: Admit },
): (refusal?: Error) => void {
  return (refusal) =>
    check(request, reply, done, (...asked) => {
      if (refusal !== undefined) throw refusal;
      return admit(...asked);
    });
}

/** The key and the capsule of a request that has waited may have gone meanwhile. */
function requireStill(
  request: FastifyRequest,
  id: string,
  { services, authentication }: Pick<Gate, "services" | "authentication">,
): void {
  const { identity, routeOptions } = request;
  if (!services.teams.isLive(identity.keyId))
    throw authentication.refusal(request, "the key was revoked while the request waited");
  services.capsules.admit(identity.teamId, id, routeOptions.config.action!); // paused again: Capsules.use waits
}

/** The id of the team's capsule that is meant by an id or a name; a name that none has stays as it is. */
export function idOf(teamId: string, idOrName: string, capsules: Services["capsules"]): string {
  return idOrName.startsWith("cl-") ? idOrName : (capsules.idNamed(teamId, idOrName) ?? idOrName);
}

/** First of all, so that the entry of a refusal has the id too. */
function nameById({ identity, params }: FastifyRequest, capsules: Services["capsules"]): void {
  const named = params as { id: string };
  named.id = idOf(identity.teamId, named.id, capsules);
}

/** Throws CapsuleError("invalid_request") where it is in doubt which host is meant: a proxy may have judged by another one. */
function requireClearHost({ raw }: FastifyRequest, hosts: PortHosts): void {
  const destination = hosts.destinationOf(raw);
  if (destination.kind === "malformed") throw new CapsuleError("invalid_request", destination.why);
}

function addCommonHeaders(request: FastifyRequest, reply: FastifyReply, hasTls: boolean): void {
  reply.header("x-request-id", request.id).header("x-content-type-options", "nosniff");
  if (request.routeOptions.config?.signed === true) reply.header("cache-control", "no-store");
  if (hasTls) reply.header("strict-transport-security", `max-age=${hstsMaxAgeSec}`);
}

/**
 * The error to send to a client whose request failed with `thrown`. A guest that goes away fails its requests with one of
 * several errors; each is replaced by the refusal that the same request would get now, if it would get one.
 */
export function currentRefusal(
  thrown: unknown,
  request: FastifyRequest,
  { capsules, released }: Pick<Services, "capsules" | "released">,
): unknown {
  const { action } = request.routeOptions.config;
  if (action === undefined || releasedOf(request) !== undefined) return thrown;
  const [{ teamId } = { teamId: "" }, { id }] = [request.identity, request.params as { id: string }];
  if (released !== undefined) {
    if (!permitted.has(request)) return thrown; // no guest of this host has seen it
    if (isMissing(thrown) && released.hasLeft(id)) return left(id);
  }
  return refusalNow(thrown, { teamId, id, action }, capsules);
}

function isMissing(thrown: unknown): boolean {
  return thrown instanceof CapsuleError && thrown.code === "not_found";
}

function left(id: string): CapsuleError {
  const message = `capsule ${id} was released by its host at this moment; repeat the request`;
  return new CapsuleError("unavailable", message, { retryAfterSec: 1 });
}

/** As `currentRefusal`, of a request that acts on the capsule. */
export function refusalNow(
  thrown: unknown,
  { teamId, id, action }: { teamId: string; id: string; action: Action },
  capsules: Pick<Services["capsules"], "get" | "permit">,
): unknown {
  if (!(thrown instanceof CapsuleError && endedByGuest.has(thrown.code))) return thrown;
  try {
    if (thrown.details?.action === "resume") return thrown;
    // A guest that failed or rebooted under a request is the request's own failure: 502, although the next one gets 409.
    if (thrown.code === "agent_error" && afterFailure.has(capsules.get(teamId, id).status)) return thrown;
    capsules.permit(teamId, id, action);
    return thrown;
  } catch (refusal) {
    return refusal;
  }
}

/** Where a guest's failure or reboot leaves its capsule. */
const afterFailure: ReadonlySet<CapsuleStatus> = new Set(["error", "starting"]);

const endedByGuest = new Set<ErrorCode>(["agent_error", "invalid_state"]);

/** For a URL that the router cannot parse: refused as malformed, without a valid key as unauthorized. */
export function refuseUnroutable(
  error: Error,
  request: FastifyRequest,
  reply: FastifyReply,
  { authentication, cors, turns, hasTls }: Pick<Gate, "authentication" | "cors" | "turns" | "hasTls">,
): void {
  addCommonHeaders(request, reply, hasTls);
  cors.addHeaders(request, reply);
  let refusal: unknown = error;
  try {
    if (isVersioned(request.url)) authentication.identify(request);
  } catch (unauthorized) {
    refusal = unauthorized;
  }
  turns.enter(ownerOf(request), reply.raw, () => sendError(refusal, request, reply));
}

function isVersioned(url: string): boolean {
  return /^\/v1(?:[/?#]|$)/.test(url);
}

export function nothingAt(url: string): CapsuleError {
  return new CapsuleError("not_found", `there is nothing at ${url.split("?", 1)[0]}`);
}

function answerUnrouted(request: FastifyRequest, reply: FastifyReply, paths: KnownPaths): Answer {
  const path = request.url.split("?", 1)[0] ?? "";
  const methods = paths.methodsOf(path);
  if (methods === undefined) throw nothingAt(path);
  const allow = [...methods, "OPTIONS"].join(", ");
  reply.header("allow", allow);
  if (request.method !== "OPTIONS") {
    throw new CapsuleError("method_not_allowed", `${request.method} cannot be done to ${path}; allowed: ${allow}`);
  }
  return () => void reply.code(204).send();
}

/** A longer path, which takes long to compare, is taken for an unknown one. */
const pathMaxLength = 2_048;

/** The methods of each registered path: distinguishes a wrong method (405) from a wrong path (404). */
class KnownPaths {
  readonly #paths = new Map<string, { pattern: RegExp; methods: Set<string> }>();

  add(route: { url: string; method: string | string[] }): void {
    const known = this.#paths.get(route.url) ?? { pattern: patternOf(route.url), methods: new Set() };
    for (const method of [route.method].flat()) known.methods.add(method);
    this.#paths.set(route.url, known);
  }

  methodsOf(path: string): string[] | undefined {
    if (path.length > pathMaxLength) return undefined;
    const matching = [...this.#paths.values()].filter(({ pattern }) => pattern.test(path));
    return matching.length === 0 ? undefined : matching.flatMap(({ methods }) => [...methods]).sort();
  }
}

/** `/capsules/:id` → a pattern with any one segment in the parameter's place. */
function patternOf(url: string): RegExp {
  const segments = url
    .split("/")
    .map((segment) => (segment === "*" ? ".*" : segment.startsWith(":") ? "[^/]+" : segment.replaceAll(".", "\\.")));
  return new RegExp(`^${segments.join("/")}$`);
}
