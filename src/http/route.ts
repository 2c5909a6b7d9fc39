/** What every route is built with, and what it declares about itself in its `config`. */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { FastifyBaseLogger, FastifyInstance } from "fastify";
import type { Identity } from "../teams/teams.ts";
import type { AuditAction } from "../wire/audit.ts";
import type { ErrorCode } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";
import type { Action } from "../wire/requirements.ts";
import type { AnswerBudget } from "./access/answer-budget.ts";
import type { IsLocal } from "./access/local-caller.ts";
import type { AnswerHeader } from "./answer-headers.ts";
import type { Services } from "./services.ts";

export type App = FastifyInstance<Server, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>;

export interface RouteContext {
  services: Services;
  limits: Limits;
  answers: AnswerBudget;
  isLocal: IsLocal;
}

/** What an audit entry says beyond the route's own declaration. */
export interface AuditDetails {
  capsuleId?: string;
  /** The command, path, process, template or key concerned; never arguments, variables or contents. */
  subject?: string;
}

declare module "fastify" {
  interface FastifyContextConfig {
    /** Needs no key. */
    open?: true;
    /** What it does to the capsule `:id`: checked before the body is read. */
    action?: Action;
    /** A WebSocket: accepts a ticket instead of a key. */
    socket?: true;
    /** Leaves an entry in the audit log. */
    audit?: AuditAction;
    /** Its response ends only when the client disconnects, so its duration is not measured. */
    endless?: true;
    /** Headers of its successful answers beyond those of all. */
    headers?: AnswerHeader[];
    /** Its error codes beyond those that follow from the rest of its declaration. */
    refuses?: ErrorCode[];
  }
  interface FastifyRequest {
    /** Undefined on open routes. */
    identity: Identity;
    auditDetails?: AuditDetails;
  }
}
