/**
 * A policy and the operator's rules, decided for one address and port, or for one name. Pure. The addresses
 * that are dialled are checked, never a name alone.
 */
import type { Egress } from "../wire/network.ts";
import { type AddressRange, type Destination, destinationOf, rangeOf } from "./destinations.ts";
import type { Grant } from "./grants.ts";
import {
  hostAddress,
  hostLoopback,
  hostName,
  isReserved,
  isReservedAddress,
  isReservedRange,
  smtpPort,
} from "./reserved-ranges.ts";

/** A policy after the operator's ceiling, read. */
export interface Rules {
  egress: Egress;
  allow: readonly Destination[];
  deny: readonly Destination[];
}

/** The operator's rules, which hold for all capsules. */
export interface OperatorRules {
  /** Beyond the fixed ones: the operator's, and the addresses of this machine. */
  reserved: readonly AddressRange[];
  grants: readonly Grant[];
}

export type DeniedReason = "reserved" | "deny" | "not listed" | "egress none";

export type Decision =
  | { kind: "denied"; reason: DeniedReason }
  /** The address to dial. A granted one may be of this machine. */
  | ({ kind: "dial" } & Target)
  /** To be dialled when a listed name has this address. */
  | { kind: "named" }
  /** Decided by the name in the first bytes. */
  | { kind: "read" };

export interface Target {
  address: number;
  isGranted: boolean;
}

/** Entries that are none are left out of `allow`; one of `deny` makes it deny all. */
export function rulesOf(policy: { egress: Egress; allow: string[]; deny: string[] }): Rules {
  const allow = policy.allow.map(destinationOf).filter((each) => !("problem" in each));
  const deny = policy.deny.map(destinationOf).filter((each) => !("problem" in each) && each.range !== undefined);
  return { egress: deny.length === policy.deny.length ? policy.egress : "none", allow, deny } as Rules;
}

export function decide(rules: Rules, operator: OperatorRules, address: number, port: number): Decision {
  const refusal = refusalOf(rules, operator, address, port);
  if (refusal !== undefined) return { kind: "denied", reason: refusal };
  const isGranted = isReservedFor(operator, address, port);
  if (isGranted && !isNamedByAddress(rules.allow, operator, address, port)) return { kind: "named" };
  if (isGranted || rules.egress === "public" || matchesAddress(rules.allow, address, port)) {
    return { kind: "dial", ...targetOf(operator, address, port) };
  }
  if (!rules.allow.some((entry) => entry.domain !== undefined && hasDomainPort(entry, port)))
    return { kind: "denied", reason: "not listed" };
  return { kind: port === 80 || port === 443 ? "read" : "named" };
}

/** The address to dial for one that is not refused. */
export function targetOf(operator: OperatorRules, address: number, port: number): Target {
  const isGranted = isReservedFor(operator, address, port);
  return { address: address === hostAddress ? hostLoopback : address, isGranted };
}

/** Why the address is shut whatever name led to it. */
export function refusalOf(
  { egress, allow, deny }: Rules,
  operator: OperatorRules,
  address: number,
  port: number,
): DeniedReason | undefined {
  if (egress === "none") return "egress none";
  if (isReservedFor(operator, address, port) && !isGrantedAndListed(allow, operator, address, port)) return "reserved";
  const isDenied = matchesAddress(deny, address, port);
  return isDenied || (address === hostAddress && matchesAddress(deny, hostLoopback, port)) ? "deny" : undefined;
}

function isReservedFor({ reserved }: OperatorRules, address: number, port: number): boolean {
  return port === smtpPort || isReservedAddress(address) || contains(reserved, address);
}

function isGrantedAndListed(
  allow: readonly Destination[],
  operator: OperatorRules,
  address: number,
  port: number,
): boolean {
  const isGranted = operator.grants.some((grant) => covers(grant, address, port));
  return isGranted && (isNamedByAddress(allow, operator, address, port) || mayBeMail(allow, address, port));
}

/** A wider entry than the reserved ranges does not name what lies in them. */
function isNamedByAddress(
  allow: readonly Destination[],
  { reserved }: OperatorRules,
  address: number,
  port: number,
): boolean {
  const naming = allow.filter((entry) => isReserved(entry) || liesWithin(entry, reserved));
  if (address !== hostAddress) return matchesAddress(naming, address, port);
  return naming.some((entry) => entry.domain === hostName && !isWildcard(entry) && hasDomainPort(entry, port));
}

/** Only port 25 of domains is reserved by the port alone; whether the address is of the domain is seen when it is dialled. */
function mayBeMail(allow: readonly Destination[], address: number, port: number): boolean {
  return port === smtpPort && address !== hostAddress && allow.some((entry) => hasDomainPort(entry, port));
}

/** A grant of all ports leaves out that of mail, which only its number opens. */
function covers({ addresses, port: granted }: Grant, address: number, port: number): boolean {
  if (addresses === "host") return address === hostAddress && granted === port;
  const isInside = address !== hostAddress && addresses.first <= address && address <= addresses.last;
  return isInside && (granted === undefined ? port !== smtpPort : granted === port);
}

/** Whether `allow` names this domain for the port. */
export function isListedName({ egress, allow }: Rules, name: string, port: number): boolean {
  if (egress === "none") return false;
  return allow.some((entry) => hasDomainPort(entry, port) && matchesName(entry, name));
}

/** Whether questions about the name are asked: it is listed for a port. */
export function mayAsk({ egress, allow }: Rules, name: string): boolean {
  return egress === "public" || (egress === "allowlist" && allow.some((entry) => matchesName(entry, name)));
}

/** Whether an answer may contain the address: a connection to a port of it may be permitted. */
export function mayAnswer(rules: Rules, operator: OperatorRules, address: number): boolean {
  if (address === hostAddress) return false;
  if (!isReservedFor(operator, address, anyPort)) return refusalOf(rules, operator, address, anyPort) === undefined;
  const ports = [...operator.grants, ...rules.allow].map(({ port = anyPort }) => port);
  return ports.some((port) => refusalOf(rules, operator, address, port) === undefined);
}

/** Why no answer may contain an address that `mayAnswer` leaves out. */
export function answerRefusalOf(rules: Rules, operator: OperatorRules, address: number): DeniedReason {
  return refusalOf(rules, operator, address, anyPort) ?? "reserved";
}

/** Whether the name of this machine has an address in the guest: the capsule lists a port of it that is granted. */
export function listsHost(rules: Rules, operator: OperatorRules): boolean {
  const ports = operator.grants.filter(({ addresses }) => addresses === "host").map(({ port = anyPort }) => port);
  return ports.some((port) => refusalOf(rules, operator, hostAddress, port) === undefined);
}

/** Unique local, link-local and loopback addresses. */
const reservedIpv6Name = /(?:^|\.)(?:[cd]\.f|[89ab]\.e\.f|1(?:\.0){31})\.ip6\.arpa$/;

/** Whether it asks, backwards, for names of reserved addresses: of one, or of a range of them. */
export function isReservedName(name: string, { reserved }: Pick<OperatorRules, "reserved">): boolean {
  if (reservedIpv6Name.test(name)) return true;
  const [, reversed] = /(?:^|\.)((?:[0-9]{1,3}\.){1,4})in-addr\.arpa$/.exec(name) ?? [];
  if (reversed === undefined) return false;
  const octets = reversed.split(".").slice(0, -1).reverse();
  const address = [...octets, "0", "0", "0"].slice(0, 4).map(Number).join(".");
  const range = rangeOf(`${address}/${8 * octets.length}`);
  return range !== undefined && (isReservedRange(range) || isWithin(range, reserved));
}

/** No entry names it, so only entries of all ports match. */
const anyPort = 0;

/** The names without a wildcard that are listed for a port, for resolving them. */
export function listedNames({ allow }: Rules, port: number): string[] {
  const plain = allow.filter((entry) => entry.domain !== undefined && !isWildcard(entry) && hasDomainPort(entry, port));
  return [...new Set(plain.map(({ domain }) => domain!))];
}

function matchesName(entry: Destination, name: string): boolean {
  if (entry.domain === undefined) return false;
  return isWildcard(entry) ? name.endsWith(`.${entry.domain}`) : name === entry.domain;
}

function isWildcard({ text }: Destination): boolean {
  return text.startsWith("*.");
}

/** A domain without a port means 80 and 443. */
function hasDomainPort({ domain, port }: Destination, asked: number): boolean {
  return domain !== undefined && (port === undefined ? asked === 80 || asked === 443 : port === asked);
}

function matchesAddress(entries: readonly Destination[], address: number, port: number): boolean {
  return entries.some(
    ({ range, port: own }) =>
      range !== undefined && range.first <= address && address <= range.last && (own === undefined || own === port),
  );
}

function liesWithin({ range }: Destination, ranges: readonly AddressRange[]): boolean {
  return range !== undefined && isWithin(range, ranges);
}

function isWithin(range: AddressRange, ranges: readonly AddressRange[]): boolean {
  return ranges.some(({ first, last }) => first <= range.first && range.last <= last);
}

function contains(ranges: readonly AddressRange[], address: number): boolean {
  return ranges.some(({ first, last }) => first <= address && address <= last);
}

const [httpPort, httpsPort] = [80, 443];

/**
 * Why a request to the name, which would leave the capsule in plain HTTP, may not be sent as HTTPS to this address of it; undefined: it may.
 */
export function injectedRefusalOf(
  rules: Rules,
  operator: OperatorRules,
  name: string,
  address: number,
): DeniedReason | undefined {
  const refusal = refusalOf(rules, operator, address, httpPort) ?? refusalOf(rules, operator, address, httpsPort);
  if (refusal !== undefined || isListedName(rules, name, httpPort)) return refusal;
  return decide(rules, operator, address, httpPort).kind === "dial" ? undefined : "not listed";
}
