/**
 * The operator's rules for the networks of all capsules: the default, the most that anybody gets, more reserved ranges, and the
 * reserved destinations that a policy may name all the same.
 */
import type { Egress } from "../wire/network.ts";
import { type AddressRange, type Destination, destinationOf, portOf, rangeOf } from "./destinations.ts";
import { hostName, isReserved, smtpPort } from "./reserved-ranges.ts";

/** A reserved destination that `allow` may name. */
export interface Grant {
  /** As the operator wrote it. */
  text: string;
  /** "host": 127.0.0.1 of this machine. */
  addresses: AddressRange | "host";
  /** Undefined: every port but 25. */
  port: number | undefined;
}

export interface NetworkRules {
  /** The default of capsules that ask for none. */
  egress: "none" | "public";
  ceiling: Egress;
  /** Ranges, as text, that are reserved beside the fixed ones. */
  deny: readonly string[];
  grants: readonly Grant[];
  /** The addresses of this machine, as they are now, which are reserved too. Left out: none. */
  ownRanges?: () => readonly AddressRange[];
}

export const strictRules: NetworkRules = { egress: "none", ceiling: "public", deny: [], grants: [] };

/** Comma-separated. Throws an Error whose message completes "CAPSULE_EGRESS_GRANT …". */
export function parseGrants(text: string): Grant[] {
  return listed(text).map((entry) => {
    const found = /^host:/.test(entry) ? hostGrant(entry) : rangeGrant(entry);
    if (found !== undefined) return found;
    throw new Error(
      `must be ranges or addresses, each with a port or without, or host:PORT, by comma; ${JSON.stringify(entry)} is none`,
    );
  });
}

function hostGrant(text: string): Grant | undefined {
  const port = portOf(text.slice("host:".length));
  return Number.isNaN(port) ? undefined : { text, addresses: "host", port };
}

function rangeGrant(entry: string): Grant | undefined {
  const found = destinationOf(entry);
  if ("problem" in found || found.range === undefined) return undefined;
  return { text: entry, addresses: found.range, port: found.port };
}

/** Comma-separated. Throws an Error whose message completes "CAPSULE_EGRESS_DENY …". */
export function parseRanges(text: string): string[] {
  const ranges = listed(text);
  const bad = ranges.find((each) => rangeOf(each) === undefined);
  if (bad === undefined) return ranges;
  throw new Error(`must be IPv4 addresses or ranges such as 203.0.113.0/24, by comma; ${JSON.stringify(bad)} is none`);
}

function listed(text: string): string[] {
  return text === "" ? [] : text.split(",").map((each) => each.trim());
}

/** Whether a policy may name it: it is not wholly reserved, or it is granted. */
export function isOpen(
  destination: Destination,
  { deny, grants, ownRanges = () => [] }: Pick<NetworkRules, "deny" | "grants" | "ownRanges">,
): boolean {
  const { range } = destination;
  const isWithin = (outer: AddressRange) => range !== undefined && contains(outer, range);
  const isDenied = deny.some((text) => isWithin(rangeOf(text)!)) || ownRanges().some(isWithin);
  return (!isReserved(destination) && !isDenied) || isGranted(destination, grants);
}

function isGranted({ domain, range, port }: Destination, grants: readonly Grant[]): boolean {
  if (range !== undefined)
    return grants.some(
      ({ addresses, port: granted }) =>
        addresses !== "host" &&
        contains(addresses, range) &&
        (granted === port || (granted === undefined && port !== smtpPort)),
    );
  const isHost = domain === hostName;
  const ports = port === undefined ? domainPorts : [port];
  // The addresses of other names are known, and compared with the grants, where they are dialled.
  return ports.every((each) =>
    grants.some(({ addresses, port: granted }) => (addresses === "host") === isHost && granted === each),
  );
}

/** The ports of a domain without one. */
const domainPorts = [80, 443];

function contains(outer: AddressRange, inner: AddressRange): boolean {
  return outer.first <= inner.first && inner.last <= outer.last;
}
