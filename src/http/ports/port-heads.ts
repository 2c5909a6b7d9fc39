/** Heads on their way through: hop-by-hop headers are dropped in both directions; names, values and order of the others stay. */
import { credentialHeaders } from "./port-credentials.ts";
import { linesOf } from "./port-hosts.ts";

const hopByHop: ReadonlySet<string> = new Set([
  ...["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"],
  ...["te", "transfer-encoding", "upgrade"],
]);
/** `Connection` cannot name these: a request without them would be another one. */
const neverNamed: ReadonlySet<string> = new Set(["host", "content-length", "transfer-encoding", "upgrade", "trailer"]);
/** Named by `Connection`, and part of the change to HTTP/2. */
const upgradeSettings = "http2-settings";
const forwarded: ReadonlySet<string> = new Set(["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]);
const framing: ReadonlySet<string> = new Set(["host", "content-length", "trailer"]);

/** How the bytes of a message are delimited. */
export type Body = "none" | "length" | "chunked";

/** undefined: a coding that is not passed on. */
export function bodyOf(headers: readonly string[]): Body | undefined {
  const codings = linesOf(headers, "transfer-encoding");
  if (codings.length > 0)
    return codings.length === 1 && codings[0]?.toLowerCase() === "chunked" ? "chunked" : undefined;
  const [length] = linesOf(headers, "content-length");
  return length === undefined || Number(length) === 0 ? "none" : "length";
}

export interface Forwarding {
  /** The address of the connection that the request came on. */
  remote: string;
  host: string;
  proto: "http" | "https";
  /** It came from a trusted proxy, whose own headers stay in front. */
  isAppended: boolean;
}

export interface GuestHead {
  forwarding: Forwarding;
  /** Replaces the Host header. */
  hostHeader: string | null;
  body: Body;
  asksForUpgrade: boolean;
}

/** The headers for the guest. */
export function headersForGuest(
  headers: readonly string[],
  { forwarding, hostHeader, body, asksForUpgrade }: GuestHead,
): string[] {
  const kept = withoutHops(headers, asksForUpgrade);
  const shown: string[] = [];
  for (const [name, value] of kept) {
    const lower = name.toLowerCase();
    // Servers of the CGI family read `X_Forwarded_For` as X-Forwarded-For.
    if (forwarded.has(lower.replaceAll("_", "-")) || (lower === "trailer" && body !== "chunked")) continue;
    shown.push(name, lower === "host" ? (hostHeader ?? value) : value);
  }
  if (linesOf(headers, "te").some((value) => /(^|,)\s*trailers\s*($|[,;])/i.test(value))) shown.push("TE", "trailers");
  if (body === "chunked") shown.push("Transfer-Encoding", "chunked");
  return [...shown, ...forwardedHeaders(headers, forwarding)];
}

function forwardedHeaders(headers: readonly string[], { remote, host, proto, isAppended }: Forwarding): string[] {
  const own = { "X-Forwarded-For": remote, "X-Forwarded-Host": host, "X-Forwarded-Proto": proto };
  return Object.entries(own).flatMap(([name, value]) => {
    const before = isAppended ? linesOf(headers, name.toLowerCase()) : [];
    return [name, [...before, value].join(", ")];
  });
}

export interface AnswerHead {
  status: number;
  /** The guest's message has a body in chunks, and so has the client's. */
  isChunked: boolean;
}

/** The headers for the client. A 101 keeps its `Upgrade`. */
export function headersForClient(headers: readonly string[], { status, isChunked }: AnswerHead): string[] {
  const isBodiless = status === 204 || (status >= 100 && status < 200);
  return withoutHops(headers, status === 101)
    .filter(([name]) => {
      const lower = name.toLowerCase();
      if (lower === "alt-svc") return false;
      if (lower === "trailer") return isChunked && !isBodiless;
      return lower !== "content-length" || !(isChunked || isBodiless);
    })
    .flat();
}

/** Headers that follow a body in chunks: none that frames, routes or opens. */
export function trailersOf(rawTrailers: readonly string[]): [string, string][] {
  return pairsOf(rawTrailers).filter(([name]) => {
    const lower = name.toLowerCase();
    const isKept = ![hopByHop, framing, credentialHeaders].some((names) => names.has(lower)) && lower !== "alt-svc";
    return isKept && !forwarded.has(lower.replaceAll("_", "-"));
  });
}

/** `keepsUpgrade`: its `Connection` names the upgrade alone. */
function withoutHops(headers: readonly string[], keepsUpgrade: boolean): [string, string][] {
  const named = new Set(
    linesOf(headers, "connection").flatMap((value) =>
      value
        .toLowerCase()
        .split(",")
        .map((each) => each.trim()),
    ),
  );
  const hasSettings = keepsUpgrade && named.has(upgradeSettings);
  const isDropped = (name: string) =>
    (keepsUpgrade && name === "upgrade") || (hasSettings && name === upgradeSettings)
      ? false
      : hopByHop.has(name) || (named.has(name) && !neverNamed.has(name));
  let hasConnection = false;
  return pairsOf(headers).flatMap(([name, value]): [string, string][] => {
    const lower = name.toLowerCase();
    if (lower === "connection" && keepsUpgrade && !hasConnection) {
      hasConnection = true;
      return [[name, hasSettings ? "Upgrade, HTTP2-Settings" : "Upgrade"]];
    }
    return isDropped(lower) ? [] : [[name, value]];
  });
}

function pairsOf(headers: readonly string[]): [string, string][] {
  const pairs: [string, string][] = [];
  for (let at = 0; at + 1 < headers.length; at += 2) pairs.push([headers[at] as string, headers[at + 1] as string]);
  return pairs;
}
