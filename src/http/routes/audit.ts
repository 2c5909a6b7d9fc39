/** The team's audit log, in pages. */
import { AuditEntry, AuditPage, AuditQuery, auditPageDefault } from "../../wire/audit.ts";
import { sliceItems } from "../list-answers.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { AuditService } from "../services.ts";
import { timestamp } from "../timestamps.ts";

export const auditSection: Section = { chapter: "Service", register };

function register(app: App, { services: { audit }, lists }: RouteContext): void {
  app.get(
    "/audit",
    {
      schema: {
        operationId: "listAuditEntries",
        summary: "Read the team's audit log, newest first",
        querystring: AuditQuery,
        response: { 200: AuditPage },
      },
    },
    async ({ identity, query }, reply) => {
      let left = query.limit ?? auditPageDefault;
      let next = query.before === undefined ? undefined : Number(query.before);
      let isEnd = false;
      const of = (limit: number) => ({ limit, before: next, capsuleId: query.capsule });
      const all = await audit.ofAllHosts?.(identity.teamId, of(left));
      const slice = () => {
        const limit = Math.min(left, sliceItems);
        if (limit === 0 || isEnd) return [];
        const page = all === undefined ? audit.list(identity.teamId, of(limit)) : pageOf(all, of(limit));
        left -= page.entries.length;
        isEnd = page.next === null;
        next = page.next ?? undefined;
        return page.entries.map(entryBody);
      };
      const end = () => `],"next":${isEnd ? null : JSON.stringify(String(next))}}`;
      await lists.sendSlices(reply, { slice, schema: AuditEntry, begin: '{"entries":[', end });
      return reply;
    },
  );
}

/** A page of entries that were read already, as Audit.list makes it. */
function pageOf(
  all: AuditPageOfAll,
  { limit, before = Number.POSITIVE_INFINITY }: { limit: number; before?: number | undefined },
) {
  const from = all.entries.findIndex(({ id }) => id < before);
  const entries = from === -1 ? [] : all.entries.slice(from, from + limit);
  const isLast = from === -1 || from + limit >= all.entries.length;
  return { entries, next: isLast ? all.next : entries.at(-1)!.id };
}

type AuditPageOfAll = ReturnType<AuditService["list"]>;
type Row = ReturnType<AuditService["list"]>["entries"][number];

function entryBody(entry: Row): AuditEntry {
  return {
    id: String(entry.id),
    at: timestamp(entry.at),
    key_id: entry.keyId,
    key_name: entry.keyName,
    address: entry.address,
    action: entry.action,
    capsule_id: entry.capsuleId,
    subject: entry.subject,
    status: entry.status,
    exit_code: entry.exitCode,
  };
}
