/** Destinations that no capsule reaches unless the operator grants them. */
import { type AddressRange, type Destination, rangeOf } from "./destinations.ts";

const cidrs = [
  ...["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"],
  ...["192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"],
  "224.0.0.0/3",
];
const ranges = cidrs.map((cidr) => rangeOf(cidr)!);

/** The name of this machine in a guest. */
export const hostName = "host.capsule.internal";
/** The address that this name has in a guest, and the one that is dialled for it. */
export const hostAddress = rangeOf("192.0.0.1")!.first;
export const hostLoopback = rangeOf("127.0.0.1")!.first;
/** Mail between servers, on every address. */
export const smtpPort = 25;

/** Whether all of it is reserved. No two of the ranges touch, so a destination lies within one of them or not wholly in them. */
export function isReserved({ text, range, domain, port }: Destination): boolean {
  if (port === smtpPort || (domain === hostName && !text.startsWith("*."))) return true;
  return range !== undefined && isReservedRange(range);
}

/** Whether all of its addresses lie in the fixed ranges. */
export function isReservedRange(range: AddressRange): boolean {
  return ranges.some((each) => isWithin(range, each));
}

/** Whether the address lies in one of the fixed ranges. */
export function isReservedAddress(address: number): boolean {
  return ranges.some(({ first, last }) => first <= address && address <= last);
}

function isWithin(inner: AddressRange, outer: AddressRange): boolean {
  return outer.first <= inner.first && inner.last <= outer.last;
}
