/**
 * Who is asking, and whether they ask too much: the team that holds the request's API key, or that a one-time ticket was
 * made for. A flood is refused before anything is done for it, and costs nobody else their turn.
 */
import type { FastifyRequest } from "fastify";
import { CapsuleError } from "../../wire/errors.ts";
import type { Limits } from "../../wire/limits.ts";
import type { Identity, TeamsService } from "../services.ts";
import { RateLimiter } from "./rate-limiter.ts";
import type { Tickets } from "./tickets.ts";

/** How many seconds' worth of requests may come at once. */
const burstSec = { keys: 5, strangers: 20, pages: 10 };
/** A team can make keys without number, so that all of them together have a bound, too. */
const keysPerTeam = 4;

export class Authentication {
  readonly #teams: TeamsService;
  readonly #tickets: Tickets;
  readonly #ofKey: RateLimiter;
  readonly #ofTeam: RateLimiter;
  readonly #ofStrangers: RateLimiter;
  readonly #ofPages: RateLimiter;

  constructor(teams: TeamsService, tickets: Tickets, limits: Limits) {
    this.#teams = teams;
    this.#tickets = tickets;
    const rate = limits.requests_per_sec;
    this.#ofKey = new RateLimiter(rate, rate * burstSec.keys);
    this.#ofTeam = new RateLimiter(rate * keysPerTeam, rate * keysPerTeam * burstSec.keys);
    const strangers = limits.refused_keys_per_sec;
    this.#ofStrangers = new RateLimiter(strangers, strangers * burstSec.strangers);
    const pages = limits.open_requests_per_sec;
    this.#ofPages = new RateLimiter(pages, pages * burstSec.pages);
  }

  /**
   * Throws unauthorized, with the same words whether the key is missing, malformed, unknown, expired or revoked; and
   * quota_exceeded. A valid key is never held against the address it comes from, which may be shared.
   */
  identify(request: FastifyRequest): Identity {
    const key = request.headers["x-api-key"];
    const identity = typeof key === "string" ? this.#teams.authenticate(key) : this.#ticketHolder(request);
    if (identity === undefined) throw this.refusal(request, "the X-API-Key header is missing or not valid");
    const waitSec = this.#ofKey.take(identity.keyId) || this.#ofTeam.take(identity.teamId);
    if (waitSec > 0) {
      throw new CapsuleError("quota_exceeded", "too many requests with this key; send them more slowly", {
        retryAfterSec: waitSec,
      });
    }
    return identity;
  }

  /** A ticket is worth no more than the key that it was asked for with. */
  #ticketHolder(request: FastifyRequest): Identity | undefined {
    if (request.routeOptions.config.socket !== true) return undefined;
    const { ticket } = request.query as { ticket?: unknown };
    if (typeof ticket !== "string") return undefined;
    const identity = this.#tickets.redeem(ticket, request.url.split("?", 1)[0] as string);
    return identity !== undefined && this.#teams.isLive(identity.keyId) ? identity : undefined;
  }

  /** For whoever asks for nothing that takes a key. Throws quota_exceeded. */
  admitAnonymous(request: FastifyRequest): void {
    const retryAfterSec = this.#ofPages.take(addressOf(request));
    if (retryAfterSec === 0) return;
    throw new CapsuleError("quota_exceeded", "too many requests came from this address; send them more slowly", {
      retryAfterSec,
    });
  }

  /** Of a key, or of what stands for one: unauthorized in these words, or quota_exceeded when it was guessed at too often. */
  refusal(request: FastifyRequest, message: string): CapsuleError {
    const retryAfterSec = this.#ofStrangers.take(addressOf(request));
    if (retryAfterSec === 0) return new CapsuleError("unauthorized", message);
    return new CapsuleError("quota_exceeded", "too many requests without a valid key came from this address", {
      retryAfterSec,
    });
  }
}

function addressOf(request: FastifyRequest): string {
  return neighbourhood(request.ip ?? "");
}

/** An IPv6 host has 2^64 addresses of its own: its network, the first four groups, stands for it. */
function neighbourhood(address: string): string {
  if (!address.includes(":") || address.includes(".")) return address;
  const [head = [], tail = []] = address.split("::").map((groups) => groups.split(":"));
  const zeros = Array<string>(Math.max(0, 8 - head.length - tail.length)).fill("0"); // what :: stands for
  return [...head, ...zeros, ...tail].slice(0, 4).join(":");
}
