/** The team's audit log, page by page. */
import { AuditPage, AuditQuery, auditPageDefault } from "../../wire/audit.ts";
import type { App, RouteContext } from "../route.ts";
import type { AuditView } from "../services.ts";
import { timestamp } from "../timestamps.ts";

export function auditRoutes(app: App, { services: { audit } }: RouteContext): void {
  app.get(
    "/audit",
    {
      schema: {
        summary: "Read the team's audit log, newest first",
        querystring: AuditQuery,
        response: { 200: AuditPage },
      },
    },
    ({ identity, query }, reply) => {
      const { entries, next } = audit.list(identity.teamId, {
        limit: query.limit ?? auditPageDefault,
        before: query.before === undefined ? undefined : Number(query.before),
        capsuleId: query.capsule,
      });
      reply.send({ entries: entries.map(toWire), next: next === null ? null : String(next) });
    },
  );
}

function toWire(view: AuditView) {
  return {
    id: String(view.id),
    at: timestamp(view.at),
    key_id: view.keyId,
    key_name: view.keyName,
    address: view.address,
    action: view.action,
    capsule_id: view.capsuleId,
    subject: view.subject,
    status: view.status,
  };
}
