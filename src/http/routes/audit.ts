/** The team's audit log, in pages. */
import { AuditPage, AuditQuery, auditPageDefault } from "../../wire/audit.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { timestamp } from "../timestamps.ts";

export const auditSection: Section = { chapter: "Service", register };

function register(app: App, { services: { audit } }: RouteContext): void {
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
      reply.send({
        entries: entries.map((entry) => ({
          id: String(entry.id),
          at: timestamp(entry.at),
          key_id: entry.keyId,
          key_name: entry.keyName,
          address: entry.address,
          action: entry.action,
          capsule_id: entry.capsuleId,
          subject: entry.subject,
          status: entry.status,
        })),
        next: next === null ? null : String(next),
      });
    },
  );
}
