/** The command that a request or a socket's first message asks for, as the agent takes it: for every way to start one. */
import type { Command } from "../agent/agent.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";

/** The fields of every start of a command: a whole body or message, whose other fields are ignored here. */
export type AskedCommand = Pick<Command, "cmd" | "envs" | "cwd" | "user"> & { args?: string[] | undefined };

/**
 * Throws invalid_request. Schemas have checked the characters; the size of a body or message bounds the other fields.
 * `own`: fields that only some ways to start one have.
 */
export function commandOf(
  { cmd, args = [], envs, cwd, user }: AskedCommand,
  { path_max_bytes: pathMaxBytes }: Pick<Limits, "path_max_bytes">,
  { tag, stdin, survive }: Pick<Command, "tag" | "stdin" | "survive"> = {},
): Command {
  if (cwd !== undefined && Buffer.byteLength(cwd) > pathMaxBytes)
    throw new CapsuleError("invalid_request", `cwd is longer than ${pathMaxBytes} bytes`, {
      details: { field: "cwd" },
    });
  return { cmd, args, envs, cwd, user, tag, ...(stdin === undefined ? {} : { stdin }), ...(survive && { survive }) };
}
