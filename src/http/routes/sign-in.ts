/**
 * Signing in without typing a key: whoever has one makes a one-time link, and the browser that opens it gets a key of
 * its own, which ends after a day's work. Links live for minutes, so they are kept in memory, and only as hashes.
 */
import { createHash, randomBytes } from "node:crypto";
import { CapsuleError } from "../../wire/errors.ts";
import { Session, SignedIn, SignInBody, SignInLink } from "../../wire/sign-in.ts";
import type { Authentication } from "../access/authentication.ts";
import { note } from "../audit-trail.ts";
import type { App, RouteContext } from "../route.ts";
import type { Identity } from "../services.ts";
import { timestamp, timestampOrNull } from "../timestamps.ts";

const linkLifeMs = 5 * 60_000;
const sessionLifeMs = 12 * 3_600_000;
const sessionName = "dashboard";
/** Of one team. */
const linksMax = 100;

interface Kept {
  /** Who made it. */
  identity: Identity;
  expiresAt: number;
}

export class SignInLinks {
  readonly #now: () => number;
  /** By the token's hash, in the order of their making, which is that of their end. */
  readonly #kept = new Map<string, Kept>();

  constructor(now: () => number = Date.now) {
    this.#now = now;
  }

  issue(identity: Identity): { token: string; expiresAt: number } {
    const now = this.#now();
    for (const [hash, { expiresAt }] of this.#kept) {
      if (expiresAt > now) break;
      this.#kept.delete(hash);
    }
    const live = [...this.#kept.values()].filter((kept) => kept.identity.teamId === identity.teamId).length;
    if (live >= linksMax) throw new CapsuleError("quota_exceeded", "too many sign-in links are waiting to be used");
    const token = `signin_${randomBytes(24).toString("hex")}`;
    const expiresAt = now + linkLifeMs;
    this.#kept.set(hashOf(token), { identity, expiresAt });
    return { token, expiresAt };
  }

  /** Who made it, once; undefined when it is unknown, used or expired. */
  redeem(token: string): Identity | undefined {
    const hash = hashOf(token);
    const kept = this.#kept.get(hash);
    this.#kept.delete(hash);
    return kept !== undefined && kept.expiresAt > this.#now() ? kept.identity : undefined;
  }
}

export function signInRoutes(app: App, { services: { teams } }: RouteContext, callers: Authentication): void {
  const links = new SignInLinks();
  const keyOf = ({ teamId, keyId }: Identity) => teams.keysOf(teamId).find((key) => key.id === keyId);

  app.post(
    "/sign-in-links",
    {
      config: { refuses: ["quota_exceeded"] },
      schema: { summary: "Make a one-time link for signing in to the dashboard", response: { 201: SignInLink } },
    },
    ({ identity }, reply) => {
      const { token, expiresAt } = links.issue(identity);
      reply.code(201).send({ token, expires_at: timestamp(expiresAt) });
    },
  );

  app.post(
    "/sign-in",
    {
      config: { open: true, audit: "sign-in", refuses: ["unauthorized", "quota_exceeded"] },
      schema: {
        summary: "Turn a one-time link into a key that expires",
        body: SignInBody,
        response: { 200: SignedIn },
      },
    },
    (request, reply) => {
      const maker = links.redeem(request.body.token);
      // A link is worth no more than the key that made it.
      if (maker === undefined || !teams.isLive(maker.keyId)) {
        throw callers.refusal(request, "this sign-in link is used, expired or not valid; ask for another one");
      }
      const { key, id, expiresAt } = teams.issueKey(maker.teamId, sessionName, sessionLifeMs);
      request.identity = { ...maker, keyId: id, keyName: sessionName };
      note(request, { subject: id });
      reply.header("cache-control", "no-store");
      reply.send({ key, key_id: id, team: maker.team, expires_at: timestamp(expiresAt as number) });
    },
  );

  app.get(
    "/session",
    { schema: { summary: "Say whose key this is", response: { 200: Session } } },
    ({ identity }, reply) => {
      const key = keyOf(identity);
      reply.send({
        team: identity.team,
        key_id: identity.keyId,
        key_name: key?.name ?? "",
        expires_at: timestampOrNull(key?.expiresAt ?? null),
      });
    },
  );
}

function hashOf(token: string): string {
  return createHash("sha256").update(token).digest("hex");
}
