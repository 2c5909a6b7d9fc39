/**
 * Whether a request was made on this machine and not forwarded by a proxy on it. A proxy that adds no header and replaces
 * Host cannot be told from a local client; CAPSULE_TRUST_PROXY declares its address, and then no request from there is local.
 */
import type { FastifyRequest } from "fastify";
import type { Proxies } from "../../network/proxies.ts";

/** At least one of these is added by each of the common proxies, though not by all in their default configuration. */
const proxyHeaders = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

export type IsLocal = (request: FastifyRequest) => boolean;

export function localCallers(proxies: Proxies): IsLocal {
  return ({ raw, ip, headers }) =>
    isLoopback(ip) &&
    !proxies.has(ip) &&
    isLoopbackName(headers.host) &&
    raw.httpVersion === "1.1" && // proxies speak HTTP/1.0 by default
    proxyHeaders.every((name) => headers[name] === undefined);
}

function isLoopback(address: string): boolean {
  return /^(::ffff:)?127\./.test(address) || address === "::1";
}

/** A public name in Host was asked for through a proxy, or by a page that had its own name resolved to this machine. */
function isLoopbackName(host: string | undefined): boolean {
  return /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$/i.test(host ?? "");
}
