/**
 * Secrets that stand for an API key once: sign-in links and WebSocket tickets. They live for seconds to minutes, so they
 * are kept in memory, as SHA-256 hashes and with a bound per team.
 */
import { hash, randomBytes } from "node:crypto";
import { Counts } from "../../counts.ts";
import type { Identity } from "../../teams/teams.ts";
import { CapsuleError } from "../../wire/errors.ts";

export interface OneTimeTokenOptions {
  prefix: string;
  lifeMs: number;
  /** Unused tokens of one team. */
  liveMax: number;
  /** Plural name in the error message. */
  plural: string;
}

export const signInLinkOptions = { prefix: "signin_", lifeMs: 5 * 60_000, liveMax: 100, plural: "sign-in links" };
export const socketTicketOptions = { prefix: "wst_", lifeMs: 30_000, liveMax: 1_000, plural: "tickets" };

interface Token {
  identity: Identity;
  scope: string;
  expiresAt: number;
}

export class OneTimeTokens {
  readonly #options: OneTimeTokenOptions;
  readonly #now: () => number;
  /** By hash, oldest first. All have the same life, so the first to expire come first. */
  readonly #tokens = new Map<string, Token>();
  readonly #liveOfTeam = new Counts();

  static signInLinks(now?: () => number): OneTimeTokens {
    return new OneTimeTokens(signInLinkOptions, now);
  }

  /** The scope of a ticket is the path of its WebSocket. */
  static socketTickets(now?: () => number): OneTimeTokens {
    return new OneTimeTokens(socketTicketOptions, now);
  }

  constructor(options: OneTimeTokenOptions, now: () => number = () => Date.now()) {
    this.#options = options;
    this.#now = now;
  }

  /** `scope`: the only use it is good for, such as one path. Throws quota_exceeded. */
  issue(identity: Identity, scope = ""): { token: string; expiresAt: number } {
    const { prefix, lifeMs, liveMax, plural } = this.#options;
    this.#removeExpired();
    if (this.#liveOfTeam.of(identity.teamId) >= liveMax)
      throw new CapsuleError("quota_exceeded", `too many ${plural} are waiting to be used`);
    const token = prefix + randomBytes(24).toString("hex");
    const expiresAt = this.#now() + lifeMs;
    this.#tokens.set(hash("sha256", token), { identity, scope, expiresAt });
    this.#liveOfTeam.add(identity.teamId);
    return { token, expiresAt };
  }

  /** The identity it was issued to, once; undefined when it is unknown, used, expired or of another scope. */
  redeem(token: string, scope = ""): Identity | undefined {
    const key = hash("sha256", token);
    const found = this.#tokens.get(key);
    if (found === undefined) return undefined;
    this.#remove(key, found);
    return found.scope === scope && found.expiresAt > this.#now() ? found.identity : undefined;
  }

  #removeExpired(): void {
    const now = this.#now();
    for (const [key, token] of this.#tokens) {
      if (token.expiresAt > now) return;
      this.#remove(key, token);
    }
  }

  #remove(key: string, { identity: { teamId } }: Token): void {
    this.#tokens.delete(key);
    this.#liveOfTeam.subtract(teamId);
  }
}
