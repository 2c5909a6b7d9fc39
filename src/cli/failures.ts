/**
 * Failures: the message, advice on what to do next, and the exit codes:
 *
 *   0    done                          1    the service refused, or did not answer
 *   2    the command line is wrong     124  exec: the command ran out of --timeout
 *   125  exec, run, shell, logs: as 1  127  exec, run: there is no such command, or it cannot be executed
 *
 * Otherwise exec, run and shell exit with the code of the command that they ran.
 */
import { ConnectionError, isCommandNotFound, ServiceError } from "../sdk/sdk.ts";
import { messageOf } from "../wire/errors.ts";
import { UsageError } from "./command.ts";
import { note, painted, printable } from "./screen.ts";

export const exitCodes = { done: 0, failed: 1, usage: 2, ranOut: 124, notRun: 125, noCommand: 127 } as const;

/** A failure on this side of the service, with advice. `code`: as the service names it, where it would have said the same. */
export class Failure extends Error {
  readonly advice: string | undefined;
  readonly code: "failed" | "not_found";

  constructor(message: string, advice?: string, code: "failed" | "not_found" = "failed") {
    super(message);
    this.advice = advice;
    this.code = code;
  }
}

export function report(name: string, error: unknown, { isJson, url }: { isJson: boolean; url: string }): void {
  const message = messageOf(error);
  if (isJson) {
    const { code = "failed", details } = error as { code?: unknown; details?: unknown };
    note(JSON.stringify({ error: { code, message, details } }));
    return;
  }
  // An error of several lines gives them apart: a line break within one may come from outside.
  const { lines = [message.trim()] } = error as { lines?: readonly string[] };
  note(`${painted("capsule", "red", process.stderr)} ${name}: ${lines.map(printable).join("\n")}`);
  const advice = adviceOn(name, error, url);
  if (advice !== undefined) note(`  ${advice}`);
}

/** Advice on what to do about a failure; undefined when nothing is known. */
export function adviceOn(name: string, error: unknown, url: string): string | undefined {
  if (error instanceof Failure || error instanceof UsageError) return error.advice;
  if (error instanceof ConnectionError) return connectionAdvice(error, url);
  if (!(error instanceof ServiceError)) return undefined;
  const id = /\bcl-[0-9a-z]{25}\b/.exec(error.message)?.[0];
  switch (error.code) {
    case "unauthorized":
      return "The key comes from CAPSULE_API_KEY, else from capsule login, else from the data folder's file api-key.";
    case "quota_exceeded":
      return quotaAdvice(error.details?.quota);
    case "no_capacity":
      return removeOrPause;
    case "no_space":
      return spaceAdvice(error.details);
    case "template_name_taken":
      return "Replace it with --overwrite, or choose another name.";
    case "conflict":
      return conflictAdvice(error.message);
    case "invalid_state":
      return stateAdvice(name, error.message, id ?? "ID");
    case "invalid_request":
      return invalidAdvice(error);
    case "not_found":
      return missingAdvice(name, error.message, id);
    default:
      return undefined;
  }
}

function stateAdvice(name: string, message: string, id: string): string | undefined {
  if (name === "start" && /\bis paused\b/.test(message)) return `Resume it: capsule resume ${id}`;
  if (name === "pause" || name === "stop" || name === "start") return undefined;
  if (/\bis paused\b/.test(message)) return `Resume it: capsule resume ${id}`;
  return /\bis (stopped|error)\b/.test(message) ? `Start it from its disk: capsule start ${id}` : undefined;
}

const removeOrPause = "capsule limits shows your limits, capsule ls your capsules. Remove or pause some.";
const makeRoom =
  "capsule limits shows what your team uses. Destroy capsules, delete templates, or trim the disk of a capsule after " +
  "removing files in it: capsule exec ID -- fstrim /";

/** A pause frees neither a capsule's place nor disk, and nothing but time frees a start. */
function quotaAdvice(quota: unknown): string {
  switch (quota) {
    case "running vCPUs":
    case "MiB of running memory":
      return removeOrPause;
    case "capsules":
      return "capsule limits shows your limits, capsule ls your capsules. Remove some.";
    case "templates":
      return "capsule limits shows your limits, capsule templates your templates. Delete some.";
    case "bytes on disk":
      return makeRoom;
    case "starts under way":
      return "Wait until some of your team's creates, resumes and starts are over, then try again.";
    default:
      return "capsule limits shows your limits. Wait, then try again.";
  }
}

function conflictAdvice(message: string): string | undefined {
  if (/no verb EXEC_STDIN/.test(message)) return "Or run it without standard input: capsule exec ID -- CMD </dev/null";
  return /no verb EXEC_AS/.test(message) ? "Or run it as root, without --user." : undefined;
}

function spaceAdvice({ shortage, needed_bytes }: Readonly<Record<string, unknown>> = {}): string {
  if (shortage === "quota") return makeRoom;
  if (shortage === "reserve" || needed_bytes !== undefined)
    return "The server's disk is nearly full. Destroyed capsules and deleted templates make room, or its operator does.";
  return "See what fills the capsule's disk: capsule exec ID -- df -h. Or the server's disk is full.";
}

/** Messages that have the remedy. */
const explained = /does not speak TLS|the certificate of|connects to no service|a proxy before the service|not a URL/;

function connectionAdvice({ code, message }: ConnectionError, url: string): string | undefined {
  if (explained.test(message)) return undefined;
  if (code === "cut_off") return "Check CAPSULE_URL: is it http or https, and is a Capsule service behind it?";
  if (code !== "unreachable") return undefined;
  const isLocal = /^http:\/\/(127\.|localhost|\[::1\])/.test(url);
  return isLocal
    ? "Is the server running? Start it with ./dev up in a clone, or systemctl start capsule after an install."
    : "Is CAPSULE_URL right, and is the server running there?";
}

function invalidAdvice(error: ServiceError): string | undefined {
  const { message } = error;
  if (isCommandNotFound(error)) return "For shell syntax and built-ins: capsule exec ID -- sh -c '…'";
  if (/^no user /.test(message)) return "Its users: capsule exec ID -- cut -d: -f1 /etc/passwd";
  if (/parent directory does not exist/.test(message)) return "Create it first: capsule exec ID -- mkdir -p DIR";
  return /^the request's body .* must (be [<>]=|not have (more|fewer)) /.test(message)
    ? "capsule limits shows your limits."
    : undefined;
}

function missingAdvice(name: string, message: string, id: string | undefined): string | undefined {
  if (id !== undefined) return "capsule ls lists the existing ones.";
  if (/\btemplate\b/.test(message)) return "capsule templates lists the existing ones.";
  if (name === "keys") return "capsule keys lists the existing ones.";
  return /\bprocess\b/.test(message) ? "capsule ps ID lists the existing ones." : undefined;
}
