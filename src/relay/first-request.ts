/**
 * The first bytes of a connection to port 80 of a capsule with rules: whether they are an HTTP request, and whose. A possible request
 * to a rule's host, in whatever odd form, is never taken for something else.
 */
import type { FirstBytes } from "./first-bytes.ts";
import { firstBytesMax } from "./first-name.ts";

export type FirstRequest =
  /** As in FirstName. */
  | { kind: "request"; name: string; port?: number }
  | { kind: "odd"; what: string }
  /** No HTTP/1 request, or one that names no rule's host. */
  | { kind: "other" }
  | { kind: "undecided" };

const requestLine = /^[^\r\n]* HTTP\/1\.[0-9][\t ]*\r?\n/;
/** A line of text so far: what has other bytes is no HTTP. */
const textPattern = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Whether more bytes may come: `late`, they have not come in time; `ended`, none will. */
export type Waiting = "more" | "late" | "ended";

export function readFirstRequest(first: FirstBytes, hosts: readonly string[], waiting: Waiting): FirstRequest {
  const { bytes, speech } = first;
  if (speech === "tls") return { kind: "other" };
  const text = bytes.toString("latin1").replace(/^[\r\n]+/, "");
  if (!text.includes("\n")) {
    const isText = textPattern.test(text.replace(/\r$/, "")) && bytes.length < firstBytesMax;
    if (!isText || waiting === "ended") return { kind: "other" };
    if (waiting === "more") return { kind: "undecided" };
    return text === "" ? { kind: "other" } : { kind: "odd", what: "an incomplete request line" };
  }
  if (!requestLine.test(text)) return { kind: "other" };
  const found = speech === "http" ? first.name() : { odd: "an odd request line" };
  if (found === undefined) {
    return waiting === "more" ? { kind: "undecided" } : oddUnless(text, hosts, "an incomplete head");
  }
  return "odd" in found ? oddUnless(text, hosts, found.odd) : { kind: "request", ...found };
}

/** An odd head is another host's only where it has a Host, and the name of no rule anywhere. */
function oddUnless(text: string, hosts: readonly string[], what: string): FirstRequest {
  const lower = text.toLowerCase();
  const isOther = /\nhost[\t ]*:[^\n]*\n/.test(lower) && !hosts.some((host) => lower.includes(host));
  return isOther ? { kind: "other" } : { kind: "odd", what };
}
