/**
 * Credentials made from an API key: the one-time sign-in link of the dashboard, whose browser gets a key that ends after
 * 12 hours; the one-time ticket of a WebSocket client that cannot set headers; and the session that a key stands for.
 */
import type { Identity } from "../../teams/teams.ts";
import { Session, SignedIn, SignInBody, SignInLink, Ticket, TicketBody } from "../../wire/credentials.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Authentication } from "../access/authentication.ts";
import { OneTimeTokens } from "../access/one-time-tokens.ts";
import { addAuditDetails } from "../audit-trail.ts";
import type { LinksOfAllHosts } from "../forwarding.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { Services } from "../services.ts";
import { timestamp, timestampOrNull } from "../timestamps.ts";

export const sessionLifeMs = 12 * 3_600_000;
const sessionName = "dashboard";

export const signInSection: Section = { chapter: "Keys", register };

function register(app: App, { services, authentication, tickets, sharedLinks }: RouteContext): void {
  const { teams } = services;
  linkRoutes(app, authentication, new SignIns(services, sharedLinks));

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

function linkRoutes(app: App, authentication: Authentication, signIns: SignIns): void {
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
      const { token, expiresAt } = signIns.issue(identity);
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
      const signedIn = await signIns.signIn(request.body.token);
      if (signedIn === undefined) {
        throw authentication.refusal(request, "this sign-in link is used, expired or not valid; ask for another one");
      }
      const { maker, key, id, expiresAt } = signedIn;
      request.identity = maker; // the audit entry names the key that made the link
      addAuditDetails(request, { subject: id });
      reply.header("cache-control", "no-store");
      return reply.send({ key, key_id: id, team: maker.team, expires_at: timestamp(expiresAt as number) });
    },
  );
}

/** The links, and the keys that they are turned into. */
class SignIns {
  readonly #services: Pick<Services, "teams" | "unheardKeys">;
  readonly #shared: LinksOfAllHosts | undefined;
  readonly #own = OneTimeTokens.signInLinks();

  constructor(services: Pick<Services, "teams" | "unheardKeys">, shared: LinksOfAllHosts | undefined) {
    this.#services = services;
    this.#shared = shared;
  }

  issue(identity: Identity): { token: string; expiresAt: number } {
    return (this.#shared ?? this.#own).issue(identity);
  }

  /** undefined: the link is used, expired or not valid. */
  async signIn(token: string) {
    const { teams } = this.#services;
    const opened = this.#shared?.open(token);
    const maker = this.#shared === undefined ? this.#own.redeem(token) : await this.#makerOf(opened?.makerId);
    // A link ends with the key that made it.
    if (maker === undefined || !teams.isLive(maker.keyId)) return undefined;
    try {
      return { maker, ...(await teams.issueSessionKey(maker, sessionName, sessionLifeMs, opened?.sessionKeyId)) };
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "conflict") return undefined;
      throw error;
    }
  }

  /** Rejects with "unavailable". */
  async #makerOf(keyId: string | undefined): Promise<Identity | undefined> {
    if (keyId === undefined) return undefined;
    const { teams, unheardKeys } = this.#services;
    if (unheardKeys?.isUnheard({ keyId })) await unheardKeys.learn({ keyId });
    return teams.holderOf(keyId);
  }
}
