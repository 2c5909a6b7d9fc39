/**
 * What is said when something fails: what it was, and what to do about it. The exit codes:
 *
 *   0    done                          1    the service refused, or did not answer
 *   2    the command line is wrong     124  exec: the command ran out of --timeout
 *   125  exec, shell, logs: as 1       127  exec: there is no such command
 *
 * exec and shell otherwise end with the exit code of what they ran.
 */
import { ConnectionError, hasCode, ServiceError } from "../sdk/sdk.ts";
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
  note(`${painted("capsule", "red", process.stderr)} ${name}: ${printable(message)}`);
  const advice = adviceOn(error, url);
  if (advice !== undefined) note(`  ${advice}`);
}

function adviceOn(error: unknown, url: string): string | undefined {
  if (error instanceof Failure) return error.advice;
  if (error instanceof ConnectionError && error.code === "unreachable") {
    const isLocal = /^http:\/\/(127\.|localhost|\[::1\])/.test(url);
    return isLocal
      ? "Is the server running? Start it with: ./dev up"
      : "Is CAPSULE_URL right, and is the server running there?";
  }
  if (hasCode(error, "unauthorized"))
    return "The key comes from CAPSULE_API_KEY, else from the data folder's file api-key (CAPSULE_DATA).";
  if (hasCode(error, "quota_exceeded") || hasCode(error, "no_capacity"))
    return "capsule limits shows what you may have; capsule ls what you have. Remove or pause some.";
  if (!(error instanceof ServiceError)) return undefined;
  const id = /\bcl-[0-9a-z]{25}\b/.exec(error.message)?.[0];
  if (error.code === "invalid_state" && /\bis paused\b/.test(error.message))
    return `Resume it: capsule resume ${id ?? "ID"}`;
  if (error.code === "template_name_taken") return "Replace it with --overwrite, or take another name.";
  if (error.code === "not_found" && id !== undefined) return "capsule ls lists the ones there are.";
  return undefined;
}
