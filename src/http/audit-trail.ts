/**
 * Leaves an entry in the audit log for every request to a route that declares `audit`, however it was answered: from
 * those that were let in to those whose capsule does not exist. Requests without a valid key are nobody's, and leave none.
 */
import type { FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import type { AuditAction } from "../wire/audit.ts";
import type { App } from "./route.ts";
import type { AuditService } from "./services.ts";

/** What an entry says beyond what the route knows. */
export interface Noted {
  capsuleId?: string;
  /** The command, path, process, template or key that it is about; never arguments, variables or contents. */
  subject?: string;
}

const clientGoneStatus = 499;

/** Entries of these are on disk before the client has its answer; the others follow within a second. */
const lasting: ReadonlySet<AuditAction> = new Set([
  "capsule.create",
  "capsule.pause",
  "capsule.resume",
  "capsule.destroy",
  "template.create",
  "template.delete",
  "key.create",
  "key.revoke",
  "sign-in",
]);

/** Call before the routes are declared. */
export function keepAudit(app: App, audit: AuditService): void {
  app.decorateRequest("noted");
  app.addHook("onRoute", (route: RouteOptions) => {
    const action = route.config?.audit;
    if (action === undefined) return;
    if (lasting.has(action)) {
      route.onSend = (request, reply, _payload, done) => {
        record(audit, action, request, reply.statusCode);
        try {
          audit.flush();
        } catch (error) {
          request.log.error({ err: error }, "the audit log could not be written; it will be tried again");
        }
        done();
      };
    }
    const recordEnd = (request: FastifyRequest, reply: FastifyReply, done: () => void) => {
      record(audit, action, request, statusOf(reply));
      done();
    };
    route.onResponse = recordEnd;
    // A client that hangs up gets no response.
    route.onRequest = (request, reply, done) => {
      void request.ip; // which is known afterwards only if it was asked for while the connection was open
      reply.raw.once("close", () => recordEnd(request, reply, () => {}));
      done();
    };
  });
}

export function note(request: FastifyRequest, noted: Noted): void {
  request.noted = { ...request.noted, ...noted };
}

/** Something was begun over a WebSocket, whose request itself is answered only by 101. */
export function recordBegun(audit: AuditService, request: FastifyRequest, subject: string): void {
  note(request, { subject });
  const { audit: action } = request.routeOptions.config;
  if (action !== undefined) record(audit, action, request, 101);
}

const recorded = new WeakSet<FastifyRequest>();

function record(audit: AuditService, action: AuditAction, request: FastifyRequest, status: number): void {
  const { identity, noted, params, ip } = request;
  if (identity === undefined || recorded.has(request)) return;
  recorded.add(request);
  const { id } = (params ?? {}) as { id?: string };
  const capsuleId = noted?.capsuleId ?? (isAboutCapsule(request) ? id : undefined);
  audit.record({
    teamId: identity.teamId,
    keyId: identity.keyId,
    keyName: identity.keyName,
    address: (ip as string | undefined) ?? "",
    action,
    capsuleId: capsuleId ?? null,
    subject: noted?.subject ?? null,
    status,
  });
}

function isAboutCapsule({ routeOptions }: FastifyRequest): boolean {
  return routeOptions.config.action !== undefined;
}

function statusOf({ raw, statusCode }: FastifyReply): number {
  return raw.writableEnded ? statusCode : clientGoneStatus;
}
