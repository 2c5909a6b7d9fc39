/**
 * The header in which a host tells another one who a request's client is. Requests of the public port lose it
 * before anything reads their head.
 */
import type { IncomingMessage } from "node:http";
import type { Identity } from "../../teams/teams.ts";
import type { Caller } from "../forwarding.ts";

export const callerHeader = "x-capsule-caller";
/** A key's name has at most 100 characters, a team's 64. */
export const callerMaxLength = 4_096;

export function encodeCaller({ identity, address, remote, requestId, origin }: Caller): string {
  return Buffer.from(JSON.stringify({ identity, address, remote, requestId, origin })).toString("base64url");
}

/** undefined: it is none. */
export function decodeCaller(header: string): Caller | undefined {
  if (header.length > callerMaxLength) return undefined;
  try {
    const { identity, address, remote, requestId, origin } = JSON.parse(Buffer.from(header, "base64url").toString());
    if (![address, remote, requestId].every((each) => typeof each === "string")) return undefined;
    if (identity !== undefined && !isIdentity(identity)) return undefined;
    if (origin !== undefined && !isOrigin(origin)) return undefined;
    const { protocol, host } = origin ?? {};
    return { identity, address, remote, requestId, origin: origin && { protocol, host } };
  } catch {
    return undefined;
  }
}

function isIdentity(value: unknown): value is Identity {
  if (typeof value !== "object" || value === null) return false;
  const { teamId, keyId, keyName, team } = value as Record<string, unknown>;
  return [teamId, keyId, keyName, team].every((each) => typeof each === "string");
}

function isOrigin(value: unknown): value is NonNullable<Caller["origin"]> {
  if (typeof value !== "object" || value === null) return false;
  const { protocol, host } = value as Record<string, unknown>;
  return (protocol === "http" || protocol === "https") && typeof host === "string";
}

/** Removes all lines of it; the value, where there was exactly one. */
export function takeCallerHeader(request: IncomingMessage): string | undefined {
  const { rawHeaders } = request;
  const values: string[] = [];
  for (let at = rawHeaders.length - 2; at >= 0; at -= 2) {
    if (rawHeaders[at]?.toLowerCase() === callerHeader) values.push(rawHeaders.splice(at, 2)[1] as string);
  }
  if (values.length === 0) return undefined;
  delete request.headers[callerHeader];
  return values.length === 1 ? values[0] : undefined;
}
