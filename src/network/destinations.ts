/** One entry of a policy's `allow` or `deny`: a domain, `*.` and a domain, an IPv4 address or range, each with a port or without. */
import { isIPv4 } from "node:net";
import { domainToASCII } from "node:url";

/** IPv4 addresses as numbers: a.b.c.d is a·2²⁴ + b·2¹⁶ + c·2⁸ + d. */
export interface AddressRange {
  first: number;
  last: number;
}

export interface Destination {
  /** As policies keep it. */
  text: string;
  /** Lower case and punycode, without a trailing dot, and without `*.` before it. */
  domain?: string;
  /** The addresses of a range or of one address. */
  range?: AddressRange;
  /** Undefined: of a domain 80 and 443, of addresses all. */
  port: number | undefined;
}

const domainMaxBytes = 253;
/** Far more characters than the punycode of a domain can stand for. */
const entryMaxLength = 1_000;
const labelPattern = /^[a-z0-9_-]{1,63}$/;

/** `problem` completes "network.allow[3] …". */
export function destinationOf(entry: string): Destination | { problem: string } {
  if (entry.length > entryMaxLength) return { problem: `has more than ${entryMaxLength} characters` };
  if (/[[\]]|:.*:/.test(entry)) return { problem: "is an IPv6 address, or has two ports: only IPv4 is dialled" };
  const [, name = "", portText] = /^([^:]*)(?::(.*))?$/s.exec(entry) ?? [];
  const port = portText === undefined ? undefined : portOf(portText);
  if (Number.isNaN(port)) return { problem: "has a port that is no whole number from 1 to 65535" };
  const suffix = port === undefined ? "" : `:${port}`;
  const range = rangeOf(name);
  if (range !== undefined) return { text: `${name}${suffix}`, range, port };
  if (name.includes("/")) return { problem: "is neither a domain nor an IPv4 address or range, such as 192.0.2.0/24" };
  const isWildcard = name.startsWith("*.");
  const domain = domainOf(isWildcard ? name.slice(2) : name);
  if (domain === undefined) return { problem: "is neither a domain nor an IPv4 address or range" };
  return { text: `${isWildcard ? "*." : ""}${domain}${suffix}`, domain, port };
}

/** NaN: it is none. */
export function portOf(text: string): number {
  const port = /^[1-9][0-9]{0,4}$/.test(text) ? Number(text) : Number.NaN;
  return port <= 65_535 ? port : Number.NaN;
}

/** The addresses of an IPv4 address or `address/bits`; undefined: it is neither. */
export function rangeOf(text: string): AddressRange | undefined {
  const [address = "", bitsText = "32", ...more] = text.split("/");
  if (!isIPv4(address) || !/^(?:[0-9]|[12][0-9]|3[0-2])$/.test(bitsText) || more.length > 0) return undefined;
  const number = address.split(".").reduce((sum, part) => sum * 256 + Number(part), 0);
  const size = 2 ** (32 - Number(bitsText));
  const first = number - (number % size);
  return { first, last: first + size - 1 };
}

export function addressText(address: number): string {
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join(".");
}

/** Undefined: it is none. A last label without a letter, or in the hexadecimal form of a number, is of an address in an odd form. */
export function domainOf(text: string): string | undefined {
  const ascii = /[^\0-\x7f]/.test(text) ? domainToASCII(text) : text;
  const domain = ascii.toLowerCase().replace(/\.$/, "");
  const labels = domain.split(".");
  const isName = domain.length <= domainMaxBytes && labels.every((label) => labelPattern.test(label));
  return isName && /[a-z]/.test(labels.at(-1)!) && !/^0x[0-9a-f]*$/.test(labels.at(-1)!) ? domain : undefined;
}
