/** What every section of routes is given, and what a route may say about itself in its `config`. */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { FastifyBaseLogger, FastifyInstance } from "fastify";
import type { AuditAction } from "../wire/audit.ts";
import type { ErrorCode } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";
import type { Action } from "../wire/requirements.ts";
import type { Noted } from "./audit-trail.ts";
import type { Identity, Services } from "./services.ts";

export type App = FastifyInstance<Server, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>;

export interface RouteContext {
  services: Services;
  limits: Limits;
}

declare module "fastify" {
  interface FastifyContextConfig {
    /** Anyone may call it, without a key. */
    open?: true;
    /** What it does to the capsule `:id`: checked before the body is read. */
    action?: Action;
    /** It is a WebSocket, so a ticket will do instead of a key. */
    socket?: true;
    /** It leaves an entry in the audit log. */
    audit?: AuditAction;
    /** Its answer goes on until somebody hangs up, so how long it took says nothing. */
    endless?: true;
    /** Error codes of its own, beyond those that follow from the rest of its declaration. */
    refuses?: ErrorCode[];
  }
  interface FastifyRequest {
    /** Not there on open routes. */
    identity: Identity;
    /** For the audit log. */
    noted?: Noted;
  }
}
