/**
 * Identifies the team behind a request, by API key, one-time ticket or signed URL, and applies the rate limits. Both happen before
 * the body is read, so that a flood of refused requests costs little.
 */
import type { FastifyRequest } from "fastify";
import type { Identity } from "../../teams/teams.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Limits } from "../../wire/limits.ts";
import type { Forwarding, OpenedTicket } from "../forwarding.ts";
import type { Credential, TeamsService, UnheardKeys } from "../services.ts";
import type { ConnectionLimit } from "./connection-limit.ts";
import { NetworkLimiter } from "./network-limiter.ts";
import type { OneTimeTokens } from "./one-time-tokens.ts";
import { RateLimiter } from "./rate-limiter.ts";
import type { SignedUrls } from "./signed-urls.ts";

/** Bucket sizes, in seconds of each rate. */
export const burstSec = { keys: 5, refusals: 20, anonymous: 10 };
/** A team can make any number of keys, so all of them together get this many times the rate of one. */
export const teamRateFactor = 4;
/**
 * Keys and sign-in links that a team makes. Their entries displace older ones of their kind in the audit log: a full share of them
 * takes hours.
 */
export const credentialRate = { perMin: 20, burst: 1_000 };

export interface AuthenticationOptions {
  teams: TeamsService;
  tickets: OneTimeTokens;
  signedUrls: SignedUrls;
  /** Is told of each request with a valid key. */
  connections: Pick<ConnectionLimit, "authenticated">;
  /** Knows the requests whose key another host has checked; undefined: there is no other host. */
  forwarding: Pick<Forwarding, "callerOf" | "tickets"> | undefined;
  /** undefined: no other host makes keys. */
  unheardKeys: UnheardKeys | undefined;
}

const badUrl = "this URL is not valid, was changed, or has expired; ask for another one";
const missingKey = "the key in X-API-Key, or in Authorization: Bearer, is missing or not valid";

/** X-API-Key counts where both headers are sent. Another scheme of Authorization, a proxy's for example, is no key. */
function keyOf({ headers }: FastifyRequest): string | undefined {
  const key = headers["x-api-key"];
  if (typeof key === "string") return key;
  return /^Bearer +(\S+) *$/i.exec(headers.authorization ?? "")?.[1];
}

export class Authentication {
  readonly #teams: TeamsService;
  readonly #tickets: OneTimeTokens;
  readonly #signedUrls: SignedUrls;
  readonly #connections: AuthenticationOptions["connections"];
  readonly #forwarding: AuthenticationOptions["forwarding"];
  readonly #unheardKeys: UnheardKeys | undefined;
  /** Tickets that any host accepts, by the request that came with one. */
  readonly #opened = new WeakMap<FastifyRequest, OpenedTicket>();
  readonly #perKey: RateLimiter;
  readonly #perTeam: RateLimiter;
  /** Keys and sign-in links that are made, per team. */
  readonly #credentials = new RateLimiter(credentialRate.perMin / 60, credentialRate.burst);
  /** Requests without a valid key, per network. */
  readonly #refusals: NetworkLimiter;
  /** Requests to open routes, per network. */
  readonly #anonymous: NetworkLimiter;

  constructor(options: AuthenticationOptions, limits: Limits) {
    const { teams, tickets, signedUrls, connections, forwarding, unheardKeys } = options;
    this.#teams = teams;
    this.#unheardKeys = unheardKeys;
    this.#forwarding = forwarding;
    this.#connections = connections;
    this.#tickets = tickets;
    this.#signedUrls = signedUrls;
    const { requests_per_sec: perKey, refused_keys_per_sec: refusals, open_requests_per_sec: anonymous } = limits;
    const perTeam = perKey * teamRateFactor;
    this.#perKey = new RateLimiter(perKey, perKey * burstSec.keys);
    this.#perTeam = new RateLimiter(perTeam, perTeam * burstSec.keys);
    this.#refusals = new NetworkLimiter(refusals, refusals * burstSec.refusals);
    this.#anonymous = new NetworkLimiter(anonymous, anonymous * burstSec.anonymous);
  }

  /**
   * Throws unauthorized, with the same message whether the key is missing, malformed, unknown, expired or revoked; and
   * quota_exceeded. A request with a valid key is not charged to its address, which clients may share.
   */
  identify(request: FastifyRequest): Identity {
    const known = this.#forwarding?.callerOf(request.raw)?.identity;
    // This host may have heard of a revocation first; a key that it has not heard of is new.
    if (known !== undefined && this.#teams.hasEnded(known.keyId)) throw this.refusal(request, missingKey);
    const identity =
      known ?? (request.routeOptions.config.signed === true ? this.#urlHolder(request) : this.#keyHolder(request));
    this.#connections.authenticated(request.raw, identity.teamId);
    this.admitKey(identity);
    return identity;
  }

  /**
   * undefined: `identify` can be called at once. Otherwise when it resolves: another host may have made the key. A lookup is charged to
   * the address as a refusal is, and one that finds the key is given back. Throws and rejects as `identify`, and with "unavailable".
   */
  learn(request: FastifyRequest): Promise<void> | undefined {
    const unheard = this.#unheardKeys;
    if (unheard === undefined) return undefined;
    const vouched = this.#forwarding?.callerOf(request.raw)?.identity;
    const credential = vouched ?? this.#credentialOf(request);
    if (credential === undefined || !unheard.isUnheard(credential)) return undefined;
    return vouched === undefined ? this.#look(credential, request, unheard) : unheard.vouch(vouched.keyId);
  }

  /** As `learn`, of several texts that may be keys. Never rejects: what is not found is refused as an unknown key is. */
  learnKeys(texts: readonly string[], request: Pick<FastifyRequest, "ip">): Promise<unknown> | undefined {
    const unheard = this.#unheardKeys;
    const keys = texts.map((key) => ({ key })).filter((each) => unheard?.isUnheard(each));
    if (unheard === undefined || keys.length === 0) return undefined;
    return Promise.allSettled(keys.map(async (each) => await this.#look(each, request, unheard)));
  }

  /** Whether the request has a ticket that any host accepts: the holder of its capsule checks it, and notes its use. */
  hasSharedTicket(request: FastifyRequest): boolean {
    return this.#opened.has(request);
  }

  /** Call where the WebSocket ends. Throws unauthorized for such a ticket that was used. */
  useTicket(request: FastifyRequest): void {
    const opened = this.#opened.get(request);
    if (opened === undefined || this.#forwarding?.tickets?.use(opened, pathOf(request)) === true) return;
    throw this.refusal(request, missingKey);
  }

  /** Counts a request with a valid key. Throws quota_exceeded. */
  admitKey(identity: Identity): void {
    const waitSec = this.#perKey.take(identity.keyId) || this.#perTeam.take(identity.teamId);
    if (waitSec > 0) {
      throw new CapsuleError("quota_exceeded", "too many requests with this key; send them more slowly", {
        retryAfterSec: waitSec,
      });
    }
  }

  /** Charges tokens beyond the one that `identify` took, for an answer that costs as much as so many requests. */
  charge({ keyId, teamId }: Identity, tokens: number): void {
    this.#perKey.charge(keyId, tokens);
    this.#perTeam.charge(teamId, tokens);
  }

  /** For a request that makes a key or a sign-in link; a revocation is never refused. Throws quota_exceeded. */
  admitCredential({ teamId }: Identity): void {
    const retryAfterSec = this.#credentials.take(teamId);
    if (retryAfterSec === 0) return;
    throw new CapsuleError(
      "quota_exceeded",
      "the team has made too many keys and sign-in links; make them more slowly",
      {
        retryAfterSec,
      },
    );
  }

  /** For requests to open routes. Throws quota_exceeded. */
  admitAnonymous(request: Pick<FastifyRequest, "ip">): void {
    const retryAfterSec = this.#anonymous.take(request.ip);
    if (retryAfterSec === 0) return;
    throw new CapsuleError("quota_exceeded", "too many requests came from this address; send them more slowly", {
      retryAfterSec,
    });
  }

  /** The error for an invalid key or token: unauthorized, or quota_exceeded after too many from this network. */
  refusal(request: Pick<FastifyRequest, "ip">, message: string): CapsuleError {
    const retryAfterSec = this.#refusals.take(request.ip);
    if (retryAfterSec === 0) return new CapsuleError("unauthorized", message);
    return new CapsuleError("quota_exceeded", "too many requests without a valid key came from this address", {
      retryAfterSec,
    });
  }

  /**
   * Whether the request has a valid key, for an open route that shows more to those that have one. A wrong key is charged as
   * on every other route. Throws quota_exceeded.
   */
  hasKey(request: FastifyRequest): boolean {
    const key = keyOf(request);
    if (key === undefined) return false;
    const identity = this.#teams.authenticate(key);
    if (identity !== undefined) {
      this.#connections.authenticated(request.raw, identity.teamId);
      return true;
    }
    const refusal = this.refusal(request, "the key in X-API-Key, or in Authorization: Bearer, is not valid");
    if (refusal.code === "quota_exceeded") throw refusal;
    return false;
  }

  /** Throws "quota_exceeded". */
  #look(credential: Credential, request: Pick<FastifyRequest, "ip">, unheard: UnheardKeys): Promise<void> {
    const refusal = this.refusal(request, missingKey);
    if (refusal.code === "quota_exceeded") throw refusal;
    return unheard.learn(credential).then((isKey) => {
      if (!isKey) throw refusal;
      this.#refusals.giveBack(request.ip);
    });
  }

  #credentialOf(request: FastifyRequest): Credential | undefined {
    const key = keyOf(request);
    if (key !== undefined) return { key };
    const { ticket } = request.query as { ticket?: unknown };
    if (request.routeOptions.config.socket !== true || typeof ticket !== "string") return undefined;
    return this.#forwarding?.tickets?.open(ticket, pathOf(request));
  }

  #keyHolder(request: FastifyRequest): Identity {
    const key = keyOf(request);
    const identity = key === undefined ? this.#ticketHolder(request) : this.#teams.authenticate(key);
    if (identity === undefined) throw this.refusal(request, missingKey);
    return identity;
  }

  /** An unknown capsule counts as a wrong signature does. */
  #urlHolder(request: FastifyRequest): Identity {
    let unknown: unknown;
    try {
      const identity = this.#signedUrls.holder(request);
      if (identity !== undefined) return identity;
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "unavailable") throw error; // its signature is good
      unknown = error;
    }
    const refusal = this.refusal(request, badUrl);
    throw refusal.code === "quota_exceeded" ? refusal : (unknown ?? refusal);
  }

  /** For a capsule that no host holds, whose holder checks again. Throws as `identify` for an URL that this secret has not signed. */
  requireSigned(request: FastifyRequest, { urlSecret }: { urlSecret: Uint8Array | null }): void {
    if (this.#forwarding?.callerOf(request.raw)?.identity !== undefined) return;
    if (this.#signedUrls.holder(request, { secret: urlSecret }) === undefined) throw this.refusal(request, badUrl);
  }

  /** A ticket ends with the key that requested it. */
  #ticketHolder(request: FastifyRequest): Identity | undefined {
    if (request.routeOptions.config.socket !== true) return undefined;
    const { ticket } = request.query as { ticket?: unknown };
    if (typeof ticket !== "string") return undefined;
    const shared = this.#forwarding?.tickets;
    if (shared !== undefined) {
      const opened = shared.open(ticket, pathOf(request));
      if (opened === undefined) return undefined;
      this.#opened.set(request, opened);
      return this.#teams.holderOf(opened.keyId);
    }
    const identity = this.#tickets.redeem(ticket, pathOf(request));
    return identity !== undefined && this.#teams.isLive(identity.keyId) ? identity : undefined;
  }
}

function pathOf({ url }: FastifyRequest): string {
  return url.split("?", 1)[0] as string;
}
