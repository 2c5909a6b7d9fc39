/**
 * Tickets of WebSockets that every host of a cluster accepts: signed under a key that all have, for one path and 30 s. The host on which
 * the WebSocket ends, which holds the capsule, knows those that were used.
 */
import type { Identity } from "../../teams/teams.ts";
import { OneTimeTokens, socketTicketOptions } from "../access/one-time-tokens.ts";
import type { OpenedTicket, TicketsOfAllHosts } from "../forwarding.ts";
import { SignedTexts } from "./signed-texts.ts";

const { prefix, lifeMs } = socketTicketOptions;
/** Clocks of two hosts may differ by so much. */
export const clockSkewMs = 2_000;
/** Used tickets of all teams; further ones are refused until older ones have expired. */
const usedMax = 100_000;

export class SharedTickets implements TicketsOfAllHosts {
  readonly #texts: SignedTexts;
  readonly #now: () => number;
  /** Counts the unused ones that a team has got here. */
  readonly #issued = OneTimeTokens.socketTickets();
  /** Their ends, the oldest first. */
  readonly #used = new Map<string, number>();

  constructor(key: Uint8Array, now = () => Date.now()) {
    this.#texts = new SignedTexts({ key, prefix, kind: "ticket" });
    this.#now = now;
  }

  /** As OneTimeTokens. */
  issue(identity: Identity, scope: string): { token: string; expiresAt: number } {
    const { token: nonce } = this.#issued.issue(identity, scope);
    const expiresAt = this.#now() + lifeMs;
    return { token: this.#texts.make([identity.keyId, nonce, expiresAt], scope), expiresAt };
  }

  /** undefined: it is not valid, has expired, or is of another scope. It may be used already. */
  open(token: string, scope: string): OpenedTicket | undefined {
    const [keyId, nonce, expiresAt] = this.#texts.read(token, scope) ?? [];
    if (keyId === undefined || Number(expiresAt) + clockSkewMs <= this.#now()) return undefined;
    return { keyId: String(keyId), nonce: String(nonce), expiresAt: Number(expiresAt) };
  }

  /** Whether this is its first use here. */
  use({ nonce, expiresAt }: OpenedTicket, scope: string): boolean {
    const now = this.#now();
    for (const [each, endsAt] of this.#used) {
      if (endsAt + clockSkewMs > now) break;
      this.#used.delete(each);
    }
    if (this.#used.has(nonce) || this.#used.size >= usedMax) return false;
    this.#used.set(nonce, expiresAt);
    this.#issued.redeem(nonce, scope); // its place is free again
    return true;
  }
}
