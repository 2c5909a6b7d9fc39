/** Errors of changes that failed, as their clients and rows are told. */
import { CapsuleError } from "../wire/errors.ts";

export function justEnded(id: string): CapsuleError {
  return new CapsuleError("invalid_state", `capsule ${id} has just ended`);
}

export function reasonOf(error: unknown): string {
  return error instanceof CapsuleError ? error.message : "an internal error; the server's log has the details";
}

const machinery = new Set(["agent_error", "internal_error", "timeout"]);

/** Failures of the machinery are the host's (502), unless they say what a client can do about them. */
export function asAgentError(error: unknown, message: string): unknown {
  if (error instanceof CapsuleError && !machinery.has(error.code)) return error;
  return new CapsuleError("agent_error", `${message}: ${reasonOf(error)}`, { cause: error });
}
