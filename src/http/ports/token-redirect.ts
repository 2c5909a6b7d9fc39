/** A link with a token leads to the same URL without it, and leaves the token as a cookie of that host. */

import type { Grant } from "./port-access.ts";
import { tokenName, withoutCredentials } from "./port-credentials.ts";
import type { PortVisit } from "./port-visit.ts";

export interface RedirectOptions {
  /** Scheme and port of the URLs, where a proxy in front decides them. */
  outside: { scheme: "http" | "https"; port: number | undefined } | undefined;
  /** That the client used, otherwise. */
  scheme: "http" | "https";
  now: number;
}

/** The grant has a token of the query. */
export function redirectHeaders(
  { head, host }: Pick<PortVisit, "head" | "host">,
  { queryToken }: Pick<Grant, "queryToken">,
  { outside, scheme, now }: RedirectOptions,
): string[] {
  const { token, expiresAt } = queryToken as NonNullable<Grant["queryToken"]>;
  const isSecure = (outside?.scheme ?? scheme) === "https";
  const [name = ""] = host.split(":", 1);
  const port = outside?.port === undefined ? "" : `:${outside.port}`;
  const origin = outside === undefined ? `${scheme}://${host}` : `${outside.scheme}://${name}${port}`;
  const maxAgeSec = Math.max(0, Math.floor((expiresAt - now) / 1_000));
  const site = isSecure ? "Secure; SameSite=None; Partitioned" : "SameSite=Lax";
  return [
    ...["Location", `${origin}${withoutCredentials(head, false).path}`],
    ...["Set-Cookie", `${tokenName}=${token}; Max-Age=${maxAgeSec}; Path=/; HttpOnly; ${site}`],
    ...["Cache-Control", "no-store", "Referrer-Policy", "no-referrer", "Content-Length", "0"],
  ];
}
