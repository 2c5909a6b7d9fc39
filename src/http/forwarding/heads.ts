/**
 * The heads of a request and its answer between two hosts, in their order and bytes. A request keeps `Connection` and `Upgrade` too, since
 * the holder reads them as it does a client's: a connection that the client closes is closed between the hosts as well.
 */
import { bodyOf } from "../ports/port-heads.ts";
import { acquireHeader } from "./acquire-questions.ts";
import { callerHeader } from "./caller-header.ts";
import { questionHeader } from "./holder-questions.ts";

interface RequestHead {
  caller: string;
  /** Length of the body, where it is sent in one piece. */
  bodyBytes: number | undefined;
}

/** Headers that one host writes for another: a client's are not passed on. */
const betweenHosts: ReadonlySet<string> = new Set([acquireHeader, callerHeader, questionHeader]);
const ofBody: ReadonlySet<string> = new Set(["content-length", "transfer-encoding", "expect"]);

/** As `rawHeaders`. */
export function headersForHolder(headers: readonly string[], { caller, bodyBytes }: RequestHead): string[] {
  const kept: string[] = [];
  const isChunked = bodyBytes === undefined && bodyOf(headers) === "chunked";
  let hasHost = false;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name, value] = [headers[at] as string, headers[at + 1] as string];
    const lower = name.toLowerCase();
    if (lower === "host") hasHost = true;
    if (betweenHosts.has(lower) || (bodyBytes !== undefined && ofBody.has(lower))) continue;
    if (lower === "trailer" && !isChunked) continue; // Node sends no such head
    kept.push(name, value);
  }
  if (!hasHost) kept.push("Host", ""); // HTTP/1.0 needs none
  if (bodyBytes !== undefined) kept.push("Content-Length", String(bodyBytes));
  return [...kept, callerHeader, caller];
}

/** As `rawHeaders`. `isChunked`: the client's answer has a body in chunks. */
export function headersOfAnswer(headers: readonly string[], { isChunked }: { isChunked: boolean }): string[] {
  const kept: string[] = [];
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name, value] = [headers[at] as string, headers[at + 1] as string];
    const lower = name.toLowerCase();
    if (lower === "keep-alive" || lower === "transfer-encoding") continue;
    if (lower === "connection" && value.toLowerCase() === "keep-alive") continue;
    if (lower === "trailer" && !isChunked) continue;
    kept.push(name, value);
  }
  return kept;
}
