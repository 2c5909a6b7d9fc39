/** The app that routes are declared on, and the declarations that a route makes in its `config`. */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { TypeBoxTypeProvider } from "@fastify/type-provider-typebox";
import type { FastifyBaseLogger, FastifyInstance } from "fastify";
import type { Identity } from "../teams/teams.ts";
import type { AuditAction } from "../wire/audit.ts";
import type { ErrorCode } from "../wire/errors.ts";
import type { Action } from "../wire/requirements.ts";
import type { AnswerHeader } from "./answer-headers.ts";

export type App = FastifyInstance<Server, IncomingMessage, ServerResponse, FastifyBaseLogger, TypeBoxTypeProvider>;

/** The chapters of the API description, in its order. */
export const chapters = ["Capsules", "Execution", "Files", "Ports", "Templates", "Keys", "Service"] as const;
export type Chapter = (typeof chapters)[number];

export interface AuditRule {
  action: AuditAction;
  /** The entry is on disk before the answer is sent; others within a second. */
  durable?: true;
  /** Changes nothing: the same read within a minute leaves no second entry. */
  read?: true;
}

/** The fields of an audit entry that depend on the request. */
export interface AuditDetails {
  capsuleId?: string;
  /** The command, path, process, template or key concerned, or the fields of a capsule; never arguments, variables or contents. */
  subject?: string;
  /** The exit code of the command that the request waited for. */
  exitCode?: number;
}

declare module "fastify" {
  interface FastifyContextConfig {
    /** Needs no key. */
    open?: true;
    /** The action on the capsule `:id`, which is checked before the body is read. */
    action?: Action;
    /** The row of a capsule that no host holds is all that it needs; see released.ts. */
    ofRow?: true;
    /** The field of the JSON body that names the capsule, where the path does not. */
    capsuleField?: string;
    /** With the query parameter `resume=false` it resumes nothing (docs/adr/0095). */
    mayDeclineResume?: true;
    /** A WebSocket: accepts a ticket instead of a key. */
    socket?: true;
    /** Takes a signature in its query instead of a key; see access/signed-urls.ts. */
    signed?: true;
    /** Makes a capsule, on one of several hosts; see placing.ts. */
    placed?: true;
    /** Reads the header Idempotency-Key; see idempotency.ts. */
    idempotent?: true;
    /** Leaves an entry in the audit log. */
    audit?: AuditRule;
    /** Set by the section that the route is in. */
    chapter?: Chapter;
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
