/** One-time tickets for WebSockets: kept in memory, since they live for seconds; bound to one team and one path. */
import { randomBytes } from "node:crypto";
import { CapsuleError } from "../../wire/errors.ts";
import { Ticket, TicketBody } from "../../wire/ticket.ts";
import type { App } from "../route.ts";
import type { Identity } from "../services.ts";
import { timestamp } from "../timestamps.ts";

const lifeMs = 30_000;
/** Of one team. */
const liveMax = 1_000;

interface Kept {
  identity: Identity;
  path: string;
  expiresAt: number;
}

export class Tickets {
  /** In the order of their making, which is that of their end. */
  readonly #kept = new Map<string, Kept>();
  readonly #liveOf = new Map<string, number>();

  issue(identity: Identity, path: string): { ticket: string; expiresAt: number } {
    this.#forgetExpired();
    const live = this.#liveOf.get(identity.teamId) ?? 0;
    if (live >= liveMax) throw new CapsuleError("quota_exceeded", "too many tickets are waiting to be used");
    const ticket = `wst_${randomBytes(24).toString("hex")}`;
    const expiresAt = Date.now() + lifeMs;
    this.#kept.set(ticket, { identity, path, expiresAt });
    this.#liveOf.set(identity.teamId, live + 1);
    return { ticket, expiresAt };
  }

  /** Whose it is, once; undefined when it is unknown, used, expired or for another path. */
  redeem(ticket: string, path: string): Identity | undefined {
    const kept = this.#kept.get(ticket);
    if (kept !== undefined) this.#forget(ticket, kept);
    if (kept === undefined || kept.path !== path || kept.expiresAt <= Date.now()) return undefined;
    return kept.identity;
  }

  #forgetExpired(): void {
    const now = Date.now();
    for (const [ticket, kept] of this.#kept) {
      if (kept.expiresAt > now) return;
      this.#forget(ticket, kept);
    }
  }

  #forget(ticket: string, { identity: { teamId } }: Kept): void {
    this.#kept.delete(ticket);
    const live = (this.#liveOf.get(teamId) ?? 0) - 1;
    if (live > 0) this.#liveOf.set(teamId, live);
    else this.#liveOf.delete(teamId);
  }
}

export function ticketRoutes(app: App, tickets: Tickets): void {
  app.post(
    "/ws-tickets",
    {
      config: { refuses: ["quota_exceeded"] },
      schema: { summary: "Get a one-time ticket for a WebSocket", body: TicketBody, response: { 201: Ticket } },
    },
    ({ identity, body }, reply) => {
      const { ticket, expiresAt } = tickets.issue(identity, body.path);
      reply.code(201).send({ ticket, expires_at: timestamp(expiresAt) });
    },
  );
}
