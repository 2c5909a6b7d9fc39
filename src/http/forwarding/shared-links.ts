/**
 * Sign-in links that every host of a cluster accepts: signed under a key that all have. The key of the session gets its id from the link,
 * so of two uses, at whichever hosts, the database refuses one.
 */
import { hash } from "node:crypto";
import type { Identity } from "../../teams/teams.ts";
import { OneTimeTokens, signInLinkOptions } from "../access/one-time-tokens.ts";
import type { LinksOfAllHosts, OpenedLink } from "../forwarding.ts";
import { clockSkewMs } from "./shared-tickets.ts";
import { SignedTexts } from "./signed-texts.ts";

const { prefix, lifeMs } = signInLinkOptions;

export class SharedLinks implements LinksOfAllHosts {
  readonly #texts: SignedTexts;
  readonly #now: () => number;
  /** Counts those that a team has got here in the last minutes. */
  readonly #issued = OneTimeTokens.signInLinks();

  constructor(key: Uint8Array, now = () => Date.now()) {
    this.#texts = new SignedTexts({ key, prefix, kind: "sign-in" });
    this.#now = now;
  }

  /** As OneTimeTokens. */
  issue(identity: Identity): { token: string; expiresAt: number } {
    const { token: nonce } = this.#issued.issue(identity);
    const expiresAt = this.#now() + lifeMs;
    return { token: this.#texts.make([identity.keyId, nonce, expiresAt], ""), expiresAt };
  }

  open(token: string): OpenedLink | undefined {
    const [makerId, nonce, expiresAt] = this.#texts.read(token, "") ?? [];
    if (makerId === undefined || Number(expiresAt) + clockSkewMs <= this.#now()) return undefined;
    this.#issued.redeem(String(nonce)); // its place is free again
    return { makerId: String(makerId), sessionKeyId: `key-${hash("sha256", String(nonce)).slice(0, 12)}` };
  }
}
