/** The domain below which each port of each capsule has its URL: `http://{port}-{id}.{domain}`. */
import { domainOf } from "./destinations.ts";

export interface PortDomain {
  host: string;
  /** The scheme of the URLs, and with it `port`, where a proxy is in front of the server; undefined: the server's own. */
  scheme?: "http" | "https";
  /** Undefined beside `scheme`: the scheme's own. */
  port?: number;
}

/** Its names are this machine. */
export const defaultPortHost = "localhost";

/** The label before it, port and id, has at most 63 bytes. */
const hostMaxBytes = 253 - 64;

/** Throws an Error whose message completes "CAPSULE_PORT_DOMAIN …". */
export function parsePortDomain(text: string): PortDomain {
  if (!text.includes("://")) return { host: requireHost(text) };
  const url = URL.parse(text);
  const isRoot = url !== null && url.username + url.password + url.search + url.hash === "" && url.pathname === "/";
  const isHttp = url?.protocol === "http:" || url?.protocol === "https:";
  if (!isRoot || !isHttp) throw unusable();
  const scheme = url.protocol === "https:" ? "https" : "http";
  return { host: requireHost(url.hostname), scheme, ...(url.port === "" ? {} : { port: Number(url.port) }) };
}

function requireHost(text: string): string {
  const host = domainOf(text);
  if (host === undefined || host.length > hostMaxBytes) throw unusable();
  return host;
}

function unusable(): Error {
  return new Error("must be a domain such as apps.example.org, or a URL of one such as https://apps.example.org:8443");
}

export interface PortUrlBase {
  domain: PortDomain;
  hasTls: boolean;
  /** Where the server listens. */
  listenPort: number;
}

/** The URL of each port of a capsule, with `{port}` in its place and no `/` at its end. */
export function portUrl({ domain, hasTls, listenPort }: PortUrlBase, id: string): string {
  const scheme = domain.scheme ?? (hasTls ? "https" : "http");
  const port = domain.scheme === undefined ? listenPort : domain.port;
  const isDefault = port === undefined || port === (scheme === "https" ? 443 : 80);
  return `${scheme}://{port}-${id}.${domain.host}${isDefault ? "" : `:${port}`}`;
}
