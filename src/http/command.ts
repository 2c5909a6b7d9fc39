/** The command that a request or a socket's first message asks for, as the agent takes it: for every way to start one. */
import type { Command } from "../agent/agent.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Limits } from "../wire/limits.ts";

/** Pass the fields that the endpoint has, since a body may have others, which are ignored. */
export type AskedCommand = Omit<Command, "args"> & { args?: string[] | undefined };

/** Throws invalid_request. Schemas have checked the characters; the size of a body or message bounds the other fields. */
export function commandOf(
  asked: AskedCommand,
  { path_max_bytes: pathMaxBytes }: Pick<Limits, "path_max_bytes">,
): Command {
  const { cmd, args = [], envs, cwd, user, tag, stdin } = asked;
  if (cwd !== undefined && Buffer.byteLength(cwd) > pathMaxBytes)
    throw new CapsuleError("invalid_request", `cwd is longer than ${pathMaxBytes} bytes`, {
      details: { field: "cwd" },
    });
  return { cmd, args, envs, cwd, user, tag, ...(stdin === undefined ? {} : { stdin }) };
}
