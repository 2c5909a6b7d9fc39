/**
 * Tickets of WebSockets that every host of a cluster accepts: signed under a key that all have, for one path and 30 s. The host on which
 * the WebSocket ends, which holds the capsule, knows those that were used.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { Identity } from "../../teams/teams.ts";
import { OneTimeTokens, socketTicketOptions } from "../access/one-time-tokens.ts";
import type { OpenedTicket, TicketsOfAllHosts } from "../forwarding.ts";

const { prefix, lifeMs } = socketTicketOptions;
/** Clocks of two hosts may differ by so much. */
const skewMs = 2_000;
const form = /^wst_([A-Za-z0-9_-]{1,400})\.([A-Za-z0-9_-]{43})$/;
/** Used tickets of all teams; further ones are refused until older ones have expired. */
const usedMax = 100_000;

export class SharedTickets implements TicketsOfAllHosts {
  readonly #key: Uint8Array;
  readonly #now: () => number;
  /** Counts the unused ones that a team has got here. */
  readonly #issued = OneTimeTokens.socketTickets();
  /** Their ends, the oldest first. */
  readonly #used = new Map<string, number>();

  constructor(key: Uint8Array, now = () => Date.now()) {
    this.#key = key;
    this.#now = now;
  }

  /** As OneTimeTokens. */
  issue(identity: Identity, scope: string): { token: string; expiresAt: number } {
    const { token: nonce } = this.#issued.issue(identity, scope);
    const expiresAt = this.#now() + lifeMs;
    const payload = Buffer.from(JSON.stringify([identity.keyId, nonce, expiresAt])).toString("base64url");
    return { token: `${prefix}${payload}.${this.#sign(payload, scope).toString("base64url")}`, expiresAt };
  }

  /** undefined: it is not valid, has expired, or is of another scope. It may be used already. */
  open(token: string, scope: string): OpenedTicket | undefined {
    const [, payload = "", signature = ""] = form.exec(token) ?? [];
    const given = Buffer.from(signature, "base64url");
    if (payload === "" || !timingSafeEqual(given, this.#sign(payload, scope))) return undefined;
    const [keyId, nonce, expiresAt] = JSON.parse(Buffer.from(payload, "base64url").toString());
    return expiresAt + skewMs > this.#now() ? { keyId, nonce, expiresAt } : undefined;
  }

  /** Whether this is its first use here. */
  use({ nonce, expiresAt }: OpenedTicket, scope: string): boolean {
    const now = this.#now();
    for (const [each, endsAt] of this.#used) {
      if (endsAt + skewMs > now) break;
      this.#used.delete(each);
    }
    if (this.#used.has(nonce) || this.#used.size >= usedMax) return false;
    this.#used.set(nonce, expiresAt);
    this.#issued.redeem(nonce, scope); // its place is free again
    return true;
  }

  #sign(payload: string, scope: string): Buffer {
    return createHmac("sha256", this.#key)
      .update(JSON.stringify(["ticket", payload, scope]))
      .digest();
  }
}
