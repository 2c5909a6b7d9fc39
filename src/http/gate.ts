/**
 * The order of checks, in one place and before any byte of the body is read: key (401), route (404, 405), capsule
 * (404), its state (409). What is wrong with the body (400) comes after, in the route.
 *
 * A route is closed unless it says that it is open, so that a forgotten declaration locks instead of unlocks.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { Authentication } from "./access/authentication.ts";
import type { InFlightLimiter } from "./access/in-flight.ts";
import { sendError } from "./errors.ts";
import type { KnownPaths } from "./known-paths.ts";
import type { App } from "./route.ts";
import type { Identity, Services } from "./services.ts";

export interface Gate {
  services: Services;
  callers: Authentication;
  crowds: InFlightLimiter;
  paths: KnownPaths;
  hasTls: boolean;
}

const halfYearSec = 15_768_000;

export function guardRoutes(app: App, { services, callers, crowds, paths, hasTls }: Gate): void {
  app.decorateRequest("identity");
  app.addHook("onRequest", (request, reply, done) => {
    reply.header("x-request-id", request.id).header("x-content-type-options", "nosniff");
    if (hasTls) reply.header("strict-transport-security", `max-age=${halfYearSec}`);
    const { config } = request.routeOptions;
    if (request.is404 ? isVersioned(request.url) : config.open !== true) {
      request.identity = callers.identify(request);
      // A WebSocket is counted by itself, for as long as it is open.
      if (config.socket !== true) reply.raw.on("close", crowds.enter(request.identity.teamId));
    } else {
      callers.admitAnonymous(request);
    }
    if (request.is404) {
      answerUnrouted(request, reply, paths);
      return;
    }
    if (config.action !== undefined) {
      const { id } = request.params as { id: string };
      services.capsules.permit(request.identity.teamId, id, config.action);
    }
    done();
  });
}

/** A URL that cannot be routed: refused as malformed, but to strangers only as strangers. */
export function refuseUnroutable(
  error: Error,
  request: FastifyRequest,
  reply: FastifyReply,
  identifyCaller: () => Identity,
): void {
  let refusal: unknown = error;
  try {
    if (isVersioned(request.url)) identifyCaller();
  } catch (stranger) {
    refusal = stranger;
  }
  sendError(refusal, request, reply);
}

function isVersioned(url: string): boolean {
  return /^\/v1(?:[/?#]|$)/.test(url);
}

export function nothingAt(url: string): CapsuleError {
  return new CapsuleError("not_found", `there is nothing at ${url.split("?", 1)[0]}`);
}

function answerUnrouted(request: FastifyRequest, reply: FastifyReply, paths: KnownPaths): void {
  const path = request.url.split("?", 1)[0] ?? "";
  const methods = paths.methodsOf(path);
  if (methods === undefined) throw nothingAt(path);
  const allow = [...methods, "OPTIONS"].join(", ");
  reply.header("allow", allow);
  if (request.method !== "OPTIONS") {
    throw new CapsuleError("method_not_allowed", `${request.method} cannot be done to ${path}; allowed: ${allow}`);
  }
  reply.code(204).send();
}
