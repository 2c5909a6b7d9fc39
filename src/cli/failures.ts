/**
 * What is said when something fails: what it was, and what to do about it. The exit codes:
 *
 *   0    done                          1    the service refused, or did not answer
 *   2    the command line is wrong     124  exec: the command ran out of --timeout
 *   125  exec, shell, logs: as 1       127  exec: there is no such command
 *
 * exec and shell otherwise end with the exit code of what they ran.
 */
import { ConnectionError, ServiceError } from "../sdk/sdk.ts";
import { note, painted, printable } from "./screen.ts";

export const exitCodes = { done: 0, failed: 1, usage: 2, ranOut: 124, notRun: 125, noCommand: 127 } as const;

/** A failure of this side, with what to do. */
export class Failure extends Error {
  readonly advice: string | undefined;

  constructor(message: string, advice?: string) {
    super(message);
    this.advice = advice;
  }
}

export function report(name: string, error: unknown, { isJson, url }: { isJson: boolean; url: string }): void {
  const message = error instanceof Error ? error.message : String(error);
  if (isJson) {
    const { code = "failed", details } = error as { code?: unknown; details?: unknown };
    note(JSON.stringify({ error: { code, message, details } }));
    return;
  }
  note(`${painted("capsule", "red", process.stderr)} ${name}: ${printable(message.trim())}`);
  const advice = adviceOn(name, error, url);
  if (advice !== undefined) note(`  ${advice}`);
}

function adviceOn(name: string, error: unknown, url: string): string | undefined {
  if (error instanceof Failure) return error.advice;
  if (error instanceof ConnectionError) return connectionAdvice(error, url);
  if (!(error instanceof ServiceError)) return undefined;
  const id = /\bcl-[0-9a-z]{25}\b/.exec(error.message)?.[0];
  switch (error.code) {
    case "unauthorized":
      return "The key comes from CAPSULE_API_KEY, else from the data folder's file api-key (CAPSULE_DATA).";
    case "quota_exceeded":
    case "no_capacity":
      return "capsule limits shows what you may have; capsule ls what you have. Remove or pause some.";
    case "no_space":
      return "See what fills it: capsule exec ID -- df -h; or the server's disk is full.";
    case "template_name_taken":
      return "Replace it with --overwrite, or take another name.";
    case "invalid_state":
      return name !== "pause" && /\bis paused\b/.test(error.message)
        ? `Resume it: capsule resume ${id ?? "ID"}`
        : undefined;
    case "invalid_request":
      return invalidAdvice(error.message);
    case "not_found":
      return missingAdvice(name, error.message, id);
    default:
      return undefined;
  }
}

function connectionAdvice({ code }: ConnectionError, url: string): string | undefined {
  if (code === "cut_off") return "Is CAPSULE_URL right, with http or https, and is it this service that answers there?";
  if (code !== "unreachable") return undefined;
  const isLocal = /^http:\/\/(127\.|localhost|\[::1\])/.test(url);
  return isLocal
    ? "Is the server running? Start it with: ./dev up"
    : "Is CAPSULE_URL right, and is the server running there?";
}

function invalidAdvice(message: string): string | undefined {
  if (/command not found/.test(message)) return "For what only a shell knows: capsule exec ID -- sh -c '…'";
  if (/parent directory does not exist/.test(message)) return "Make it first: capsule exec ID -- mkdir -p DIR";
  return /^the request's body/.test(message) ? "capsule limits shows what you may have." : undefined;
}

function missingAdvice(name: string, message: string, id: string | undefined): string | undefined {
  if (id !== undefined) return "capsule ls lists the ones there are.";
  if (/\btemplate\b/.test(message)) return "capsule templates lists the ones there are.";
  if (name === "keys") return "capsule keys lists the ones there are.";
  return /\bprocess\b/.test(message) ? "capsule ps ID lists the ones there are." : undefined;
}
