/**
 * The first bytes of a request on a connection to port 80 of a capsule with rules: whether they are an HTTP request, and whose. A possible
 * request to a rule's host, in whatever odd form, is never taken for something else.
 */
import type { FirstBytes } from "./first-bytes.ts";
import { firstBytesMax } from "./first-name.ts";
import { headerLine } from "./http-head.ts";
import { bodyOf, valuesOf } from "./inject-heads.ts";
import { namesUpgrade } from "./upgrade-answer.ts";

/** How the bytes behind a head are delimited: their number, or chunks. */
export type Framing = number | "chunked";

export type FirstRequest =
  /** To a rule's host; `port` where the Host says one. */
  | { kind: "ruled"; port?: number }
  /** To another host, with the head's size, and whether it asks for another protocol than HTTP. */
  | { kind: "foreign"; headBytes: number; framing: Framing; asksUpgrade: boolean }
  | { kind: "odd"; what: string }
  /** No HTTP/1 request. */
  | { kind: "other" }
  | { kind: "undecided" };

/** Ends in a version, or has a target: Node's parser takes a request without a version, other ones a bare CR as the end of a line. */
const requestLine = /^[\t\x20-\x7e](?:[^\r\n]* HTTP\/1\.[0-9][\t ]*[\r\n]|[^\s]*[\t ]+(?:\/|\*[\s]|https?:\/\/))/i;
/** HTTP/2 without TLS, whose hosts are compressed. https://www.rfc-editor.org/rfc/rfc9113#section-3.4 */
const http2Line = /^PRI \* HTTP\/2/;
/** A line so far that may become a request's: other bytes are no HTTP. */
const linePattern = /^[\t\x20-\x7e][\t\r\x20-\x7e\x80-\xff]*$/;
const endOfHead = /\n\r?\n/;

/** Whether more bytes may come: `late`, they have not come in time; `ended`, none will. */
export type Waiting = "more" | "late" | "ended";

export function readFirstRequest(first: FirstBytes, hosts: readonly string[], waiting: Waiting): FirstRequest {
  const { bytes, speech } = first;
  if (speech === "tls") return { kind: "other" };
  const text = bytes.toString("latin1");
  const begin = /^[\r\n]*/.exec(text)![0].length;
  const request = text.slice(begin);
  if (!request.includes("\n")) return readLine(request, waiting);
  if (http2Line.test(request)) return { kind: "odd", what: "HTTP/2 without TLS" };
  if (!requestLine.test(request)) return { kind: "other" };
  const found = speech === "http" ? first.name() : { odd: "an odd request line" };
  if (found !== undefined && "name" in found && hosts.includes(found.name)) return { kind: "ruled", ...found };
  const end = endOfHead.exec(request);
  if (end === null) return readPart(request, hosts, waiting);
  const head = request.slice(0, end.index + end[0].length);
  if (head.length > firstBytesMax) return { kind: "odd", what: "a head that is too long" };
  if (found === undefined || "odd" in found) {
    const what = found?.odd ?? "an odd head";
    if (!isForeign(head, hosts)) return { kind: "odd", what };
  }
  const raw = fieldsOf(head);
  const framing = framingOf(head, raw);
  if (framing === undefined) return { kind: "odd", what: "a body that servers delimit differently" };
  const asksUpgrade = raw !== undefined && namesUpgrade(raw);
  return { kind: "foreign", headBytes: begin + head.length, framing, asksUpgrade };
}

function readLine(line: string, waiting: Waiting): FirstRequest {
  const isPossible = line === "" || linePattern.test(line);
  if (isPossible && line.length >= firstBytesMax) return { kind: "odd", what: "a head that is too long" };
  if (!isPossible || waiting === "ended") return { kind: "other" };
  if (waiting === "more") return { kind: "undecided" };
  return line === "" ? { kind: "other" } : { kind: "odd", what: "an incomplete request line" };
}

function readPart(part: string, hosts: readonly string[], waiting: Waiting): FirstRequest {
  if (part.length >= firstBytesMax) return { kind: "odd", what: "a head that is too long" };
  if (waiting === "more") return { kind: "undecided" };
  if (waiting === "ended" && isForeign(part, hosts)) return { kind: "other" };
  return { kind: "odd", what: "an incomplete head" };
}

/** An odd head is another host's only where it has a Host, and the name of no rule anywhere. */
function isForeign(head: string, hosts: readonly string[]): boolean {
  const lower = head.toLowerCase();
  return /\nhost[\t ]*:[^\n]*\n/.test(lower) && !hosts.some((host) => lower.includes(host));
}

/** Names and values in turn; undefined: a line is odd. */
function fieldsOf(head: string): string[] | undefined {
  const lines = head.split("\r\n").slice(1, -2);
  const raw: string[] = [];
  for (const line of lines) {
    const [, name = "", value = ""] = headerLine.exec(line) ?? [];
    raw.push(name, value.replace(/^[\t ]+|[\t ]+$/g, "")); // a server may take other spaces as a part of it
  }
  const isOdd = !head.endsWith("\r\n\r\n") || raw.some((each, index) => index % 2 === 0 && each === "");
  return isOdd ? undefined : raw;
}

/** Undefined: servers may read its body differently. */
function framingOf(head: string, raw: readonly string[] | undefined): Framing | undefined {
  if (raw === undefined) return /content-length|transfer-encoding/i.test(head) ? undefined : 0;
  const body = bodyOf(raw);
  const lengths = valuesOf(raw, "content-length");
  if (body === "none") return 0;
  // Chunks are of HTTP/1.1: servers read the body of an earlier one to its end, or by them.
  if (body === "chunked" && !/ HTTP\/1\.1[\t ]*\r\n/.test(head.slice(0, head.indexOf("\n") + 1))) return undefined;
  if (body === "chunked") return lengths.length === 0 ? "chunked" : undefined;
  return lengths.length === 1 && /^\d{1,15}$/.test(lengths[0]!) ? Number(lengths[0]) : undefined;
}
