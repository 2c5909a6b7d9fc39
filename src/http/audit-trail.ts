/**
 * Writes an audit entry for every authenticated request to a route that declares `audit`, whatever its response: also for
 * a refused one or for an unknown capsule. A request without a valid key belongs to no team and leaves no entry.
 */
import type { FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import type { AddExitCode, AuditEntry, AuditJoining } from "../teams/audit.ts";
import type { AuditAction } from "../wire/audit.ts";
import type { App, AuditDetails, AuditRule } from "./route.ts";
import type { AuditService } from "./services.ts";

const clientGoneStatus = 499;

/** Call before the routes are declared. */
export function keepAudit(app: App, audit: AuditService): void {
  const record = ({ action, read }: AuditRule, request: FastifyRequest, status: number) => {
    if (!isFirst(request)) return;
    audit.record(entryOf(action, request, status), joiningOf(request, status, read === true));
  };
  app.decorateRequest("auditDetails");
  app.addHook("onRoute", (route: RouteOptions) => {
    const rule = route.config?.audit;
    if (rule === undefined) return;
    if (rule.durable === true) {
      route.onSend = (request, reply, _payload, done) => {
        record(rule, request, reply.statusCode);
        if (reply.statusCode >= 400) {
          done(); // nothing was changed, so the entry may wait for those of the same second
          return;
        }
        try {
          audit.flush();
        } catch (error) {
          request.log.error({ err: error }, "the audit log could not be written; it will be tried again");
        }
        done();
      };
    }
    const recordEnd = (request: FastifyRequest, reply: FastifyReply, done: () => void) => {
      record(rule, request, statusOf(reply));
      done();
    };
    route.preHandler = (request, _reply, done) => {
      begun.add(request);
      done();
    };
    route.onResponse = recordEnd;
    // onResponse does not run when the client disconnects before the response.
    route.onRequest = (request, reply, done) => {
      void request.ip; // Fastify reads it from the socket on first use, which must be while the socket is open
      reply.raw.once("close", () => recordEnd(request, reply, () => {}));
      done();
    };
  });
}

export function addAuditDetails(request: FastifyRequest, details: AuditDetails): void {
  request.auditDetails = { ...request.auditDetails, ...details };
}

/** For a WebSocket, whose request ends with status 101: records the command or session started over it. */
export function recordStart(audit: AuditService, request: FastifyRequest, subject: string): AddExitCode {
  addAuditDetails(request, { subject });
  const { audit: rule } = request.routeOptions.config;
  if (rule === undefined || !isFirst(request)) return () => {};
  return audit.recordCommand(entryOf(rule.action, request, 101));
}

/** An entry besides the request's own: what else it changed. */
export function recordAlso(audit: AuditService, request: FastifyRequest, subject: string, status: number): void {
  const { audit: rule } = request.routeOptions.config;
  if (rule !== undefined) audit.record({ ...entryOf(rule.action, request, status), subject });
}

/** For a request that changed nothing and whose answer another entry has. */
export function leaveOut(request: FastifyRequest): void {
  recorded.add(request);
}

/** As if `leaveOut` had not been called. */
export function takeIn(request: FastifyRequest): void {
  recorded.delete(request);
}

const recorded = new WeakSet<FastifyRequest>();
/** Requests that were permitted and whole, so that their handlers have begun. */
const begun = new WeakSet<FastifyRequest>();

/** A request whose client disconnected while it was served (499) may have changed something, so its entry stays alone. */
function joiningOf(request: FastifyRequest, status: number, isRead: boolean): AuditJoining | undefined {
  if (status >= 400 && !begun.has(request)) return "refused";
  if (status >= 400 && status !== clientGoneStatus) return "failed";
  return isRead ? "read" : undefined;
}

/** True once per authenticated request. */
function isFirst(request: FastifyRequest): boolean {
  if (request.identity === undefined || recorded.has(request)) return false;
  recorded.add(request);
  return true;
}

/** For an authenticated request. */
function entryOf(action: AuditAction, request: FastifyRequest, status: number): AuditEntry {
  const { identity, auditDetails, params, ip, routeOptions } = request;
  const { id } = (params ?? {}) as { id?: string };
  const capsuleId = auditDetails?.capsuleId ?? (routeOptions.config.action === undefined ? undefined : id);
  return {
    teamId: identity.teamId,
    keyId: identity.keyId,
    keyName: identity.keyName,
    address: (ip as string | undefined) ?? "",
    action,
    capsuleId: capsuleId ?? null,
    subject: auditDetails?.subject ?? null,
    status,
    exitCode: auditDetails?.exitCode ?? null,
  };
}

function statusOf({ raw, statusCode }: FastifyReply): number {
  return raw.writableEnded ? statusCode : clientGoneStatus;
}
