/**
 * Secrets that stand for an API key once: sign-in links and WebSocket tickets. They live for seconds to minutes, so they
 * are kept in memory, as SHA-256 hashes and with a bound per team.
 */
import { hash, randomBytes } from "node:crypto";
import { Counts } from "../../counts.ts";
import type { Clocks, Identity } from "../../teams/teams.ts";
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
  /** By the monotonic clock: a wall clock that is set revives no token and ends none. */
  expiresAtMs: number;
}

const systemClocks: Clocks = { now: () => Date.now(), ticks: () => performance.now() };

export class OneTimeTokens {
  readonly #options: OneTimeTokenOptions;
  readonly #clocks: Clocks;
  /** By hash, oldest first. All have the same life, so the first to expire come first. */
  readonly #tokens = new Map<string, Token>();
  readonly #liveOfTeam = new Counts();

  static signInLinks(clocks?: Clocks): OneTimeTokens {
    return new OneTimeTokens(signInLinkOptions, clocks);
  }

  /** The scope of a ticket is the path of its WebSocket. */
  static socketTickets(clocks?: Clocks): OneTimeTokens {
    return new OneTimeTokens(socketTicketOptions, clocks);
  }

  constructor(options: OneTimeTokenOptions, clocks = systemClocks) {
    this.#options = options;
    this.#clocks = clocks;
  }

  /** `scope`: the only use it is good for, such as one path. `expiresAt` is in epoch milliseconds. Throws quota_exceeded. */
  issue(identity: Identity, scope = ""): { token: string; expiresAt: number } {
    const { prefix, lifeMs, liveMax, plural } = this.#options;
    this.#removeExpired();
    if (this.#liveOfTeam.of(identity.teamId) >= liveMax)
      throw new CapsuleError("quota_exceeded", `too many ${plural} are waiting to be used`);
    const token = prefix + randomBytes(24).toString("hex");
    const { now, ticks } = this.#clocks;
    this.#tokens.set(hash("sha256", token), { identity, scope, expiresAtMs: ticks() + lifeMs });
    this.#liveOfTeam.add(identity.teamId);
    return { token, expiresAt: now() + lifeMs };
  }

  /** The identity it was issued to, once; undefined when it is unknown, used, expired or of another scope. */
  redeem(token: string, scope = ""): Identity | undefined {
    const key = hash("sha256", token);
    const found = this.#tokens.get(key);
    if (found === undefined) return undefined;
    this.#remove(key, found);
    return found.scope === scope && found.expiresAtMs > this.#clocks.ticks() ? found.identity : undefined;
  }

  #removeExpired(): void {
    const nowMs = this.#clocks.ticks();
    for (const [key, token] of this.#tokens) {
      if (token.expiresAtMs > nowMs) return;
      this.#remove(key, token);
    }
  }

  #remove(key: string, { identity: { teamId } }: Token): void {
    this.#tokens.delete(key);
    this.#liveOfTeam.subtract(teamId);
  }
}
