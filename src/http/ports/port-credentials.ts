/**
 * The credentials of a port's URL: a key, or a token in a header, the query or a cookie. All of them are read here, and cut out of what
 * the guest is sent. Other bytes of path and headers stay as they are.
 */
import { isPortToken } from "../../network/port-tokens.ts";
import { linesOf } from "./port-hosts.ts";

/** The query parameter and the cookie. */
export const tokenName = "capsule_token";
const keyHeader = "x-api-key";
const tokenHeader = "x-capsule-token";

/**
 * Credentials of one kind that are looked at, at some 20 µs each and before any turn. Pages of other capsules may set
 * cookies of this name, so a good token stands behind more of them than a good key does.
 */
const triedMax = { keys: 4, tokens: 16 } as const;

export interface Credentials {
  keys: string[];
  tokens: string[];
  /** Part of `tokens`. */
  queryTokens: string[];
  /** Texts in `Authorization` that have the form of a key. They authorise nothing. */
  authorizationKeys: string[];
}

/** A request's head: its path with the query, and its headers as `rawHeaders`. */
export interface Head {
  path: string;
  headers: string[];
}

export function credentialsOf({ path, headers }: Head): Credentials {
  const queryTokens = queryOf(path)
    .filter(isToken)
    .map((part) => decoded(part.slice(part.indexOf("=") + 1)));
  const cookies = linesOf(headers, "cookie").flatMap(pairsOf).filter(isTokenCookie);
  const cookieTokens = cookies.map((pair) => pair.slice(pair.indexOf("=") + 1).trim());
  return {
    keys: linesOf(headers, keyHeader).slice(0, triedMax.keys),
    tokens: [linesOf(headers, tokenHeader), queryTokens, cookieTokens].flatMap(tried),
    queryTokens: tried(queryTokens),
    authorizationKeys: linesOf(headers, "authorization").flatMap(keysIn).slice(0, triedMax.tokens),
  };
}

function tried(texts: readonly string[]): string[] {
  return texts.filter(isPortToken).slice(0, triedMax.tokens);
}

/** The head without credentials; `hidesAuthorization`: without `Authorization` too. */
export function withoutCredentials({ path, headers }: Head, hidesAuthorization: boolean): Head {
  const kept: string[] = [];
  for (let at = 0; at < headers.length; at += 2) {
    const [name = "", value = ""] = [headers[at], headers[at + 1]];
    const lower = name.toLowerCase();
    if (lower === keyHeader || lower === tokenHeader) continue;
    if (lower === "authorization" && hidesAuthorization) continue;
    const shown =
      lower === "cookie" ? cookieWithoutToken(value) : lower === "referer" ? pathWithoutToken(value) : value;
    if (shown !== undefined) kept.push(name, shown);
  }
  return { path: pathWithoutToken(path), headers: kept };
}

/** Names of headers that hold credentials, which a trailer may not bring either. */
export const credentialHeaders: ReadonlySet<string> = new Set([keyHeader, tokenHeader, "authorization", "cookie"]);

/** The parts of the query between its `&`. */
function queryOf(path: string): string[] {
  const at = path.indexOf("?");
  return at === -1 ? [] : path.slice(at + 1).split("&");
}

/** Every spelling that a server would read as this name. */
function isToken(part: string): boolean {
  return decoded(part.split("=", 1)[0] as string) === tokenName;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function pathWithoutToken(path: string): string {
  const parts = queryOf(path);
  const kept = parts.filter((part) => !isToken(part));
  if (kept.length === parts.length) return path;
  const bare = path.slice(0, path.indexOf("?"));
  return kept.length === 0 ? bare : `${bare}?${kept.join("&")}`;
}

function pairsOf(cookie: string): string[] {
  return cookie.split(";");
}

function isTokenCookie(pair: string): boolean {
  return (pair.split("=", 1)[0] as string).trim() === tokenName;
}

/** undefined: nothing is left. */
function cookieWithoutToken(cookie: string): string | undefined {
  const pairs = pairsOf(cookie);
  const kept = pairs.filter((pair) => !isTokenCookie(pair));
  if (kept.length === pairs.length) return cookie;
  const text = kept.join(";").trim();
  return text === "" ? undefined : text;
}

/** Words of the value that may be a key, also inside those in base64, as the name and password of `Basic` are. */
function keysIn(authorization: string): string[] {
  const encoded = authorization.match(/[A-Za-z0-9+/_-]{16,}/g) ?? [];
  const text = [authorization, ...encoded.map((word) => Buffer.from(word, "base64").toString("latin1"))].join(" ");
  return text.match(/capk_[0-9a-f]{48}(?![0-9a-zA-Z])/g) ?? [];
}
