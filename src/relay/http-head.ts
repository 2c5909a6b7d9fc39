/**
 * The Host of an HTTP/1 request, from the first bytes of a connection. An odd head is refused, since a server or proxy may read
 * another host in it: two Hosts, folded lines, a whole URL as target, ends of lines other than CR LF.
 *
 * https://www.rfc-editor.org/rfc/rfc9112
 */
import { domainOf, portOf } from "../network/destinations.ts";
import { type FirstName, firstBytesMax, odd } from "./first-name.ts";

const endOfHead = "\r\n\r\n";
/** Far longer than any method in use. */
const methodMaxBytes = 32;
const requestLine = /^[A-Z][A-Z-]{0,31} (?:\/[\x21-\x7e\x80-\xff]*|\*) HTTP\/1\.[01]$/;
/** Name and value. */
export const headerLine = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)$/;

/** Whether a connection that begins with this byte may be HTTP. */
export function beginsHttp(byte: number): boolean {
  return byte >= 0x41 && byte <= 0x5a;
}

/** `scanned`: bytes that an earlier call has seen, of the same connection. */
export function readHttpHead(bytes: Buffer, scanned = 0): FirstName {
  const end = bytes.indexOf(endOfHead, Math.max(0, scanned - endOfHead.length + 1), "latin1");
  const beginning = bytes.toString("latin1", 0, methodMaxBytes + 1);
  if (!/^[A-Z][A-Z-]{0,31}(?: |$)/.test(beginning)) return odd("no HTTP/1 request");
  if (end === -1) {
    return bytes.length >= firstBytesMax ? odd("a head that is too long") : { need: bytes.length + 1 };
  }
  if (end + endOfHead.length > firstBytesMax) return odd("a head that is too long");
  const [first = "", ...lines] = bytes.toString("latin1", 0, end).split("\r\n");
  if (first.startsWith("CONNECT ")) return odd("CONNECT");
  if (!requestLine.test(first)) return odd("an odd request line");
  const hosts: string[] = [];
  for (const line of lines) {
    const [, name, value = ""] = headerLine.exec(line) ?? [];
    if (name === undefined) return odd("an odd header");
    if (name.toLowerCase() === "host") hosts.push(value.replace(/^[\t ]+|[\t ]+$/g, ""));
  }
  return hosts.length === 1 ? hostIn(hosts[0]!) : odd(hosts.length === 0 ? "no Host" : "two Hosts");
}

/** The name and port of a Host's value. */
export function hostIn(host: string): FirstName {
  const [, name = "", portText] = /^([\x21-\x39\x3b-\x7e]+)(?<!\.)(?::(.*))?$/.exec(host) ?? [];
  const domain = domainOf(name);
  if (domain === undefined) return odd("an odd Host");
  if (portText === undefined) return { name: domain };
  const port = portOf(portText);
  return Number.isNaN(port) ? odd("an odd Host") : { name: domain, port };
}
