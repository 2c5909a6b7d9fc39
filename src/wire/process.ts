/** Processes inside a capsule. */
import Type, { type Static } from "typebox";
import { waitDefaultSec } from "./capsule.ts";
import { OutputSocketQuery } from "./credentials.ts";
import type { Limits } from "./limits.ts";

const missing = "Missing from a capsule that was saved by an earlier release.";

export const Process = Type.Object(
  {
    pid: Type.Integer(),
    tag: Type.String({ description: "Empty for processes that the API did not start itself." }),
    cmd: Type.String({ description: "First word of the process's command line, as the process shows it now." }),
    args: Type.Array(Type.String(), { description: "The other words." }),
    user: Type.Optional(Type.String({ description: `Its effective user's name, or a decimal uid. ${missing}` })),
    started_at: Type.Optional(
      Type.Integer({
        minimum: 0,
        description:
          "Unix time in milliseconds, by the service's clock: neither a pause nor a program that sets the capsule's clock changes " +
          `it. ${missing}`,
      }),
    ),
    kind: Type.Optional(
      Type.Unsafe<"exec" | "pty" | "other">({
        type: "string",
        enum: ["exec", "pty", "other"],
        description: `Started by exec, as a terminal, or not by the API itself: children are \`other\`. ${missing}`,
      }),
    ),
  },
  { title: "Process" },
);
export type Process = Static<typeof Process>;

export const ProcessList = Type.Object({
  processes: Type.Array(Process, { description: "All but kernel threads and zombies." }),
});

export const ProcessListQuery = Type.Object({
  resume: Type.Optional(
    Type.Unsafe<"true" | "false">({
      type: "string",
      enum: ["true", "false"],
      default: "true",
      description: "false: a paused capsule with auto_resume is not resumed; 409 invalid_state.",
    }),
  ),
});

export const ProcessParams = Type.Object({
  id: Type.String({ description: "A capsule's id, cl-…" }),
  selector: Type.String({ description: "A PID, if it is all digits; else a tag." }),
});

export const AttachQuery = Type.Object({
  ...OutputSocketQuery.properties,
  from: Type.Optional(
    Type.String({
      pattern: "^(start|now|[0-9]{1,15})$",
      default: "now",
      description:
        "Where the output begins: `start`: with what is kept; `now`; or an offset, which counts the bytes of both streams.",
    }),
  ),
});

export const LogsQuery = Type.Object({
  stream: Type.Optional(
    Type.Unsafe<"both" | "stdout" | "stderr">({
      type: "string",
      enum: ["both", "stdout", "stderr"],
      default: "both",
      description: "both: in the order of arrival.",
    }),
  ),
  tail: Type.Optional(
    Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: "Only the last lines, so many." }),
  ),
});

export const signals = ["SIGKILL", "SIGTERM"] as const;
export type Signal = (typeof signals)[number];

export const SignalQuery = Type.Object({
  signal: Type.Optional(
    Type.Unsafe<Signal>({
      type: "string",
      enum: [...signals],
      default: "SIGKILL",
      description:
        "Sent to the process's group. SIGKILL of a process that the API started ends everything that it has started, whatever the group.",
    }),
  ),
});

/** Exit codes and output are kept for five minutes, of the latest 64 processes of a capsule. */
export function ExitQuery(limits: Limits) {
  return Type.Object({
    timeout: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: limits.wait_max_sec,
        default: waitDefaultSec(limits),
        description: "Seconds to wait for its end.",
      }),
    ),
  });
}

export const ProcessExit = Type.Object(
  {
    exit_code: Type.Union([Type.Integer(), Type.Null()], {
      description: "128 + n: killed by signal n; null: the process is still running.",
    }),
  },
  { title: "ProcessExit" },
);
