/** Who is asking: the team that holds the request's API key. */
import type { FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { Identity, TeamsService } from "./services.ts";

export const apiKeyHeader = "x-api-key";

/** Throws unauthorized, with the same words whether the key is missing, malformed, unknown or revoked. */
export function identify(teams: TeamsService, request: FastifyRequest): Identity {
  const key = request.headers[apiKeyHeader];
  const identity = typeof key === "string" ? teams.authenticate(key) : undefined;
  if (identity === undefined) throw new CapsuleError("unauthorized", "the X-API-Key header is missing or not valid");
  return identity;
}
