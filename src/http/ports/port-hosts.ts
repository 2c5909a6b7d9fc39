/**
 * Where a request goes, by its Host header and nothing else: to the API, or, below the domain of ports, to one port of one capsule.
 * A request whose host is in doubt is refused before any route is looked at, since a proxy may have judged by another one.
 */
import type { IncomingMessage } from "node:http";

/** A port of a capsule. */
export interface PortAddress {
  id: string;
  port: number;
}

export type Destination =
  | { kind: "api" }
  | { kind: "malformed"; why: string }
  /** Below the domain, but no port of a capsule. */
  | { kind: "nothing" }
  /** `host`: the Host header as it came. `path`: of the target, with its query. */
  | { kind: "port"; address: PortAddress; host: string; path: string };

/** The parts of a request that decide. */
export type Addressed = Pick<IncomingMessage, "rawHeaders" | "url" | "httpVersion">;

const api: Destination = { kind: "api" };
const labelPattern = /^([1-9][0-9]{0,4})-(cl-[0-9a-z]+)$/;
/** No name of DNS is longer, with a dot at its end and a port. */
const hostMaxLength = 260;
/** The form of a Host: empty, or a name, an IPv4 or an IPv6 address, with a port or without. */
const hostPattern = /^(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?$/;
const absolutePattern = /^([a-z][a-z0-9+.-]*):\/\/([^/?#]*)(.*)$/is;
const defaultPorts: Record<string, string> = { http: "80", https: "443" };

/** `domain`: lower case, without a dot at its end. Undefined: there is none, and all requests are the API's. */
export class PortHosts {
  readonly #suffix: string | undefined;

  constructor(domain: string | undefined) {
    this.#suffix = domain === undefined ? undefined : `.${domain}`;
  }

  destinationOf({ rawHeaders, url = "/", httpVersion }: Addressed): Destination {
    const hosts = linesOf(rawHeaders, "host");
    if (hosts.length > 1) return malformed("the request has more than one Host header");
    const [host] = hosts;
    if (host === undefined && httpVersion === "1.1") return malformed("the request has no Host header");
    if (host !== undefined && host.length > hostMaxLength) return malformed("the Host header is too long");
    const target = splitTarget(url, host);
    if (target === undefined) return malformed("the target is of another host than the Host header");
    if (host === undefined) return api;
    const name = nameOf(host);
    if (this.#suffix === undefined || !name.endsWith(this.#suffix))
      return hostPattern.test(host) ? api : malformed("the Host header is no host and port");
    if (!/^[^:]*(?::[0-9]{0,5})?$/.test(host)) return malformed("the Host header is no host and port");
    const address = addressOf(name.slice(0, -this.#suffix.length));
    return address === undefined ? { kind: "nothing" } : { kind: "port", address, host, path: target };
  }
}

function malformed(why: string): Destination {
  return { kind: "malformed", why };
}

/** The values of all lines of a header. `name` in lower case. */
export function linesOf(rawHeaders: readonly string[], name: string): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}

/** Lower case, without port and dots at its end. */
function nameOf(host: string): string {
  return (host.split(":", 1)[0] as string).toLowerCase().replace(/\.+$/, "");
}

function addressOf(label: string): PortAddress | undefined {
  const [, digits = "", id = ""] = labelPattern.exec(label) ?? [];
  const port = Number(digits);
  return id === "" || port > 65_535 ? undefined : { id, port };
}

/** Path and query; undefined: an absolute target that names another host. */
function splitTarget(url: string, host: string | undefined): string | undefined {
  const [, scheme = "", authority = "", rest = ""] = absolutePattern.exec(url) ?? [];
  if (scheme === "") return url;
  const port = defaultPorts[scheme.toLowerCase()];
  if (port === undefined || host === undefined || authority.length > hostMaxLength) return undefined;
  if (comparable(authority, port) !== comparable(host, port)) return undefined;
  return rest.startsWith("/") ? rest : `/${rest}`;
}

function comparable(host: string, defaultPort: string): string {
  const [, port = ""] = /:([0-9]*)$/.exec(host) ?? [];
  const name = host
    .replace(/:[0-9]*$/, "")
    .toLowerCase()
    .replace(/\.+$/, "");
  return `${name}:${port === "" ? defaultPort : port}`;
}
