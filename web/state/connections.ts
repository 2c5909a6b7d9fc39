/** Decisions about a capsule's connections, as rows of a table, and the entry of `allow` that would let one through. */
import type { NetworkState } from "../../src/sdk/sdk.ts";

export type Decision = NetworkState["recent"][number];

export interface ConnectionRow {
  /** The name or address, with the port where there is one. */
  destination: string;
  /** The address behind a name. */
  address: string | undefined;
  verdict: Decision["verdict"];
  reason: string;
  count: number;
  at: string;
  /** The entry of `allow` that lets it through; undefined: none does, or it is let through. */
  entry: string | undefined;
}

const reasons: Record<string, string> = {
  reserved: "a reserved address",
  deny: "denied by the policy",
  "not listed": "not allowed by the policy",
  "egress none": "the policy lets nothing out",
  limit: "too many at once",
  refused: "nobody listens there",
  unreachable: "no way there",
  timeout: "no answer",
  dns: "the name cannot be resolved",
};

/** Newest first. */
export function connectionRows(recent: readonly Decision[]): ConnectionRow[] {
  return recent.toReversed().map((each) => ({
    destination: withPort(each.host ?? each.address ?? "a name", each.port),
    address: each.host === undefined ? undefined : each.address,
    verdict: each.verdict,
    reason: reasons[each.reason] ?? each.reason,
    count: each.count,
    at: each.at,
    entry: entryFor(each),
  }));
}

/** A domain without a port is 80 and 443. */
function entryFor({ verdict, reason, host, address, port }: Decision): string | undefined {
  if (verdict !== "denied" || (reason !== "not listed" && reason !== "egress none")) return undefined;
  if (host !== undefined) return port === 80 || port === 443 ? host : withPort(host, port);
  return address === undefined ? undefined : withPort(address, port);
}

function withPort(name: string, port: number | undefined): string {
  return port === undefined ? name : `${name}:${port}`;
}
