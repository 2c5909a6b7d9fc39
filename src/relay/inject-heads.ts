/** Heads of requests that get a rule's headers, and of their answers. Headers that frame a message, or are of one connection, are dropped. */
import type { OpenInjectRule } from "../network/inject.ts";

const hopByHop: ReadonlySet<string> = new Set([
  ...["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"],
  ...["te", "transfer-encoding", "upgrade", "http2-settings"],
]);
/** `Connection` cannot name these: a request without them would be another one. */
const neverNamed: ReadonlySet<string> = new Set(["host", "content-length", "trailer", "expect"]);
/** A request with one of these and without framing has no body; another one then says so. */
const bodiless: ReadonlySet<string> = new Set(["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"]);

/** How the bytes of a message are delimited. */
export type Body = "none" | "length" | "chunked";

/** Undefined: a coding that is not passed on. */
export function bodyOf(raw: readonly string[]): Body | undefined {
  const codings = valuesOf(raw, "transfer-encoding");
  if (codings.length > 0) return codings.join().toLowerCase() === "chunked" ? "chunked" : undefined;
  return valuesOf(raw, "content-length").length > 0 ? "length" : "none";
}

/** The values of all lines with this name, which is lower case. */
export function valuesOf(raw: readonly string[], name: string): string[] {
  return pairsOf(raw).flatMap(([each, value]) => (each.toLowerCase() === name ? [value] : []));
}

export interface InjectedHead {
  method: string;
  body: Body;
  rule: { host: string; headers: Record<string, string> };
}

/** Names and values in turn. The rule's headers replace those of the guest. */
export function injectedHeaders(raw: readonly string[], { method, body, rule }: InjectedHead): string[] {
  const replaced = new Set(Object.keys(rule.headers).map((name) => name.toLowerCase()));
  const kept = withoutHops(raw).filter(([name]) => {
    const lower = name.toLowerCase();
    if (lower === "host" || replaced.has(lower)) return false;
    return body === "chunked" ? lower !== "content-length" : lower !== "trailer";
  });
  const headers = ["Host", rule.host, ...kept.flat(), ...Object.entries(rule.headers).flat()];
  if (valuesOf(raw, "te").some((value) => /(^|,)\s*trailers\s*($|[,;])/i.test(value))) headers.push("TE", "trailers");
  if (body === "chunked") headers.push("Transfer-Encoding", "chunked");
  if (body === "none" && !bodiless.has(method)) headers.push("Content-Length", "0");
  return headers;
}

/** Names and values in turn. */
export function answerHeaders(raw: readonly string[]): string[] {
  return withoutHops(raw).flat();
}

/** Trailers of the guest's request, or of the answer, which has no rule. */
export function trailersOf(raw: readonly string[], rule?: OpenInjectRule): [string, string][] {
  const replaced = new Set(Object.keys(rule?.headers ?? {}).map((name) => name.toLowerCase()));
  return pairsOf(raw).filter(([name]) => {
    const lower = name.toLowerCase();
    return !hopByHop.has(lower) && !neverNamed.has(lower) && !replaced.has(lower);
  });
}

function withoutHops(raw: readonly string[]): [string, string][] {
  const named = valuesOf(raw, "connection").flatMap((value) => value.toLowerCase().split(","));
  const dropped = new Set(named.map((each) => each.trim()).filter((each) => !neverNamed.has(each)));
  return pairsOf(raw).filter(([name]) => !hopByHop.has(name.toLowerCase()) && !dropped.has(name.toLowerCase()));
}

function pairsOf(raw: readonly string[]): [string, string][] {
  const pairs: [string, string][] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) pairs.push([raw[at] as string, raw[at + 1] as string]);
  return pairs;
}
