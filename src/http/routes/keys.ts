/** The team's API keys: list, make, revoke. */
import Type from "typebox";
import type { Identity, KeyView } from "../../teams/teams.ts";
import { CreateKeyBody, Key, KeyList, KeyParams, NewKey } from "../../wire/credentials.ts";
import { addAuditDetails, recordAlso } from "../audit-trail.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { timestamp, timestampOrNull } from "../timestamps.ts";

export const keysSection: Section = { chapter: "Keys", register };

function register(app: App, { services: { teams, audit }, authentication, lists }: RouteContext): void {
  app.get(
    "/keys",
    { schema: { operationId: "listKeys", summary: "List the team's API keys", response: { 200: KeyList } } },
    async ({ identity }, reply) => {
      const encode = (view: KeyView) => keyBody(view, identity);
      await lists.send(reply, teams.keysOf(identity.teamId), { encode, schema: Key, field: "keys" });
      return reply;
    },
  );

  app.post(
    "/keys",
    {
      config: { audit: { action: "key.create", durable: true }, refuses: ["quota_exceeded"] },
      schema: {
        operationId: "createKey",
        summary: "Make an API key, shown only now",
        example: { name: "ci" },
        body: CreateKeyBody,
        response: { 201: NewKey },
      },
    },
    async (request, reply) => {
      const { identity, body } = request;
      authentication.admitCredential(identity);
      const { key, ...view } = await teams.issueKey(identity, body.name);
      addAuditDetails(request, { subject: view.id });
      return reply.code(201).send({ ...keyBody(view, identity), key });
    },
  );

  app.delete(
    "/keys/:id",
    {
      config: { audit: { action: "key.revoke", durable: true }, refuses: ["not_found", "forbidden"] },
      schema: {
        operationId: "revokeKey",
        summary: "Revoke an API key, even the one in use, and all keys made with it",
        params: KeyParams,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      addAuditDetails(request, { subject: params.id });
      const revoked = await teams.revokeKeyOf(identity, params.id);
      for (const subject of revoked) if (subject !== params.id) recordAlso(audit, request, subject, 204);
      return reply.code(204).send(null);
    },
  );
}

function keyBody(view: KeyView, { keyId }: Identity): Key {
  return {
    id: view.id,
    name: view.name,
    prefix: view.prefix,
    created_at: timestamp(view.createdAt),
    last_used_at: timestampOrNull(view.lastUsedAt),
    expires_at: timestampOrNull(view.expiresAt),
    current: view.id === keyId,
    made_by: view.madeBy,
  };
}
