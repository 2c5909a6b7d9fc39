/** The network policy of a capsule: reading what a client sends, entry by entry, and keeping it as text in a row. */
import { CapsuleError } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";
import { type Egress, egresses } from "../wire/network.ts";
import { type Destination, destinationOf } from "./destinations.ts";
import { isOpen, type NetworkRules, strictRules } from "./grants.ts";
import type { InjectRule } from "./inject.ts";

export interface NetworkPolicy {
  egress: Egress;
  /** Domains, `*.` and a domain, IPv4 addresses and ranges; each may end in `:port`. */
  allow: string[];
  /** IPv4 addresses and ranges, with `:port` or without. */
  deny: string[];
  /** Ports whose URL asks for no key. */
  publicPorts: number[];
  /** The Host that a server in the guest sees; null: the client's. */
  hostHeader: string | null;
  /** Headers that the relay sets, without their values. */
  inject: InjectRule[];
}

export const noNetwork: Readonly<NetworkPolicy> = Object.freeze({
  egress: "none",
  allow: [],
  deny: [],
  publicPorts: [],
  hostHeader: null,
  inject: [],
});

export type PolicyLimits = Pick<Limits, "network_entries_max" | "public_ports_max">;

const hostHeaderMaxLength = 255;
const hostPattern = /^(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?$/;

/**
 * Without the rules of `inject`, which `parseInject` reads. A field left out, and null, is its default; unknown fields are ignored. Throws CapsuleError with the path of the field:
 * "invalid_request", and "forbidden" for an entry of `allow` that only a grant of the operator opens.
 */
export function parseNetwork(value: unknown, limits: PolicyLimits, rules: NetworkRules = strictRules): NetworkPolicy {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw refusal("network", "must be object");
  const given = value as Record<string, unknown>;
  const allowed = entriesOf("allow", given.allow, limits);
  const denied = entriesOf("deny", given.deny, limits);
  const policy: NetworkPolicy = {
    egress: egressOf(given.egress ?? rules.egress),
    allow: allowed.map(({ text }) => text),
    deny: denied.map(({ text }) => text),
    publicPorts: publicPortsOf(given.public_ports ?? [], limits),
    hostHeader: hostHeaderOf(given.host_header ?? null),
    inject: [],
  };
  requireGranted(allowed, rules);
  return policy;
}

function egressOf(value: unknown): Egress {
  const found = egresses.find((each) => each === value);
  if (found === undefined) throw refusal("network.egress", `must be one of ${egresses.join(", ")}`);
  return found;
}

function entriesOf(list: "allow" | "deny", value: unknown, { network_entries_max: max }: PolicyLimits): Destination[] {
  const field = `network.${list}`;
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value)) throw refusal(field, "must be array");
  if (value.length > max) throw refusal(field, `has ${value.length} entries; at most ${max} are possible`);
  return value.map((entry: unknown, index) => {
    const at = `${field}[${index}]`;
    if (typeof entry !== "string") throw refusal(at, "must be string");
    const found = destinationOf(entry);
    if ("problem" in found) throw refusal(at, found.problem);
    if (list === "deny" && found.domain !== undefined)
      throw refusal(at, "is a domain, whose addresses would stay reachable: deny IPv4 addresses or ranges");
    return found;
  });
}

function publicPortsOf(value: unknown, { public_ports_max: max }: PolicyLimits): number[] {
  const field = "network.public_ports";
  if (!Array.isArray(value)) throw refusal(field, "must be array");
  if (value.length > max) throw refusal(field, `has ${value.length} ports; at most ${max} are possible`);
  return value.map((port: unknown, index) => {
    if (typeof port === "number" && Number.isInteger(port) && port >= 1 && port <= 65_535) return port;
    throw refusal(`${field}[${index}]`, "must be a port, a whole number from 1 to 65535");
  });
}

function hostHeaderOf(value: unknown): string | null {
  if (value === null) return null;
  const field = "network.host_header";
  if (typeof value !== "string") throw refusal(field, "must be string or null");
  const isHost = value.length <= hostHeaderMaxLength && hostPattern.test(value.replaceAll("{port}", "1"));
  if (!isHost) throw refusal(field, "must be a host with or without a port, such as localhost:{port}");
  return value;
}

/** Checked last: an entry that is no destination is refused for that. */
function requireGranted(allowed: readonly Destination[], rules: NetworkRules): void {
  const at = allowed.findIndex((each) => !isOpen(each, rules));
  if (at === -1) return;
  const { text } = allowed[at]!;
  throw new CapsuleError(
    "forbidden",
    `network.allow[${at}], ${text}, is reserved, and the operator has not granted it (CAPSULE_EGRESS_GRANT)`,
    { details: { field: `network.allow[${at}]` } },
  );
}

function refusal(field: string, problem: string): CapsuleError {
  return new CapsuleError("invalid_request", `${field} ${problem}`, { details: { field } });
}

/** null for the policy of a capsule that reaches nothing and has no public port, as rows of before have it. */
export function encodePolicy(policy: NetworkPolicy): string | null {
  const text = JSON.stringify(policy);
  return text === JSON.stringify(noNetwork) ? null : text;
}

/** Undefined when the row's text is none that `encodePolicy` made. */
export function decodePolicy(text: string | null): NetworkPolicy | undefined {
  if (text === null) return { ...noNetwork };
  try {
    const value = JSON.parse(text) as Partial<NetworkPolicy> | null;
    const isPolicy =
      egresses.some((each) => each === value?.egress) &&
      isListOf("string", value?.allow) &&
      isListOf("string", value?.deny) &&
      isListOf("number", value?.publicPorts) &&
      (value?.hostHeader === null || typeof value?.hostHeader === "string") &&
      (value.inject === undefined || (Array.isArray(value.inject) && value.inject.every(isRule)));
    return isPolicy ? ({ ...value, inject: value.inject ?? [] } as NetworkPolicy) : undefined; // rows of before have no rules
  } catch {
    return undefined;
  }
}

function isRule(value: Partial<InjectRule> | null): boolean {
  return typeof value?.host === "string" && isListOf("string", value.headers);
}

function isListOf(type: "string" | "number", value: unknown): boolean {
  return Array.isArray(value) && value.every((each) => typeof each === type);
}
