/** Who is asking: the team that holds the request's API key, or that a one-time ticket was made for. */
import type { FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { Identity, TeamsService } from "./services.ts";
import type { Tickets } from "./tickets.ts";

/** Throws unauthorized, with the same words whether the key is missing, malformed, unknown or revoked. */
export function identify(teams: TeamsService, tickets: Tickets, request: FastifyRequest): Identity {
  const key = request.headers["x-api-key"];
  const identity = typeof key === "string" ? teams.authenticate(key) : ticketHolder(teams, tickets, request);
  if (identity === undefined) throw new CapsuleError("unauthorized", "the X-API-Key header is missing or not valid");
  return identity;
}

/** A ticket is worth no more than the key that it was asked for with. */
function ticketHolder(teams: TeamsService, tickets: Tickets, request: FastifyRequest): Identity | undefined {
  if (request.routeOptions.config.socket !== true) return undefined;
  const { ticket } = request.query as { ticket?: unknown };
  if (typeof ticket !== "string") return undefined;
  const identity = tickets.redeem(ticket, request.url.split("?", 1)[0] as string);
  return identity !== undefined && teams.isLive(identity.keyId) ? identity : undefined;
}
