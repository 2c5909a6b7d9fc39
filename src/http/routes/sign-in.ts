/**
 * Credentials made from an API key: the one-time sign-in link of the dashboard, whose browser gets a key that ends after
 * 12 hours; the one-time ticket of a WebSocket client that cannot set headers; and the session that a key stands for.
 */
import type { Identity } from "../../teams/teams.ts";
import { Session, SignedIn, SignInBody, SignInLink, Ticket, TicketBody } from "../../wire/credentials.ts";
import type { Authentication } from "../access/authentication.ts";
import { OneTimeTokens } from "../access/one-time-tokens.ts";
import { addAuditDetails } from "../audit-trail.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { TeamsService } from "../services.ts";
import { timestamp, timestampOrNull } from "../timestamps.ts";

export const sessionLifeMs = 12 * 3_600_000;
const sessionName = "dashboard";

export const signInSection: Section = { chapter: "Keys", register };

function register(app: App, { services: { teams }, authentication, tickets }: RouteContext): void {
  linkRoutes(app, teams, authentication);

  app.get(
    "/session",
    {
      schema: {
        operationId: "getSession",
        summary: "Get the team and the key of this request",
        response: { 200: Session },
      },
    },
    ({ identity: { team, keyId } }, reply) => {
      const key = teams.key(keyId);
      reply.send({
        team,
        key_id: keyId,
        key_name: key?.name ?? "",
        expires_at: timestampOrNull(key?.expiresAt ?? null),
      });
    },
  );

  app.post(
    "/ws-tickets",
    {
      config: { audit: { action: "ticket.create" }, refuses: ["quota_exceeded"] },
      schema: {
        operationId: "createTicket",
        summary: "Get a one-time ticket for a WebSocket",
        example: { path: "/v1/capsules/web/pty" },
        body: TicketBody,
        response: { 201: Ticket },
      },
    },
    (request, reply) => {
      const { identity, body } = request;
      addAuditDetails(request, { subject: body.path });
      const { token, expiresAt } = tickets.issue(identity, body.path);
      reply.code(201).send({ ticket: token, expires_at: timestamp(expiresAt) });
    },
  );
}

function linkRoutes(app: App, teams: TeamsService, authentication: Authentication): void {
  const links = OneTimeTokens.signInLinks();
  app.post(
    "/sign-in-links",
    {
      config: { audit: { action: "sign-in-link.create", durable: true }, refuses: ["quota_exceeded"] },
      schema: {
        operationId: "createSignInLink",
        summary: "Make a one-time link for signing in to the dashboard",
        response: { 201: SignInLink },
      },
    },
    ({ identity }, reply) => {
      authentication.admitCredential(identity);
      const { token, expiresAt } = links.issue(identity);
      reply.code(201).send({ token, expires_at: timestamp(expiresAt) });
    },
  );

  app.post(
    "/sign-in",
    {
      config: {
        open: true,
        audit: { action: "sign-in", durable: true },
        headers: ["Cache-Control"],
        refuses: ["unauthorized", "quota_exceeded", "unavailable"],
      },
      schema: {
        operationId: "signIn",
        summary: "Turn a one-time link into a key that expires",
        example: { token: "the-part-of-the-link-after-token" },
        body: SignInBody,
        response: { 200: SignedIn },
      },
    },
    async (request, reply) => {
      const maker: Identity | undefined = links.redeem(request.body.token);
      // A link ends with the key that made it.
      if (maker === undefined || !teams.isLive(maker.keyId)) {
        throw authentication.refusal(request, "this sign-in link is used, expired or not valid; ask for another one");
      }
      const { key, id, expiresAt } = await teams.issueSessionKey(maker, sessionName, sessionLifeMs);
      request.identity = maker; // the audit entry names the key that made the link
      addAuditDetails(request, { subject: id });
      reply.header("cache-control", "no-store");
      return reply.send({ key, key_id: id, team: maker.team, expires_at: timestamp(expiresAt as number) });
    },
  );
}
