/** The address that a client has sent its request to, for URLs in the answer. */
import type { FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";

const hostPattern = /^(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$/;

/**
 * The address that the request came to: its Host header, behind a trusted proxy X-Forwarded-Host and X-Forwarded-Proto, and
 * without a header the socket's own address. Throws invalid_request.
 */
export function originOf({ protocol, host, socket }: Pick<FastifyRequest, "protocol" | "host" | "socket">): string {
  const name = hostOf({ host, socket });
  if (!hostPattern.test(name)) {
    throw new CapsuleError("invalid_request", "the Host header is no host and port, so the URL would lead nowhere");
  }
  return `${protocol === "https" ? "https" : "http"}://${name}`;
}

export function hostOf({ host, socket }: Pick<FastifyRequest, "host" | "socket">): string {
  const { localAddress = "127.0.0.1", localPort } = socket;
  return host || `${localAddress.includes(":") ? `[${localAddress}]` : localAddress}:${localPort}`;
}
