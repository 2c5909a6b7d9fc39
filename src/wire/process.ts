/** Processes inside a capsule. */
import Type, { type Static } from "typebox";

export const Process = Type.Object(
  {
    pid: Type.Integer(),
    tag: Type.String({ description: "Empty for what init or the template started." }),
    cmd: Type.String(),
    args: Type.Array(Type.String()),
  },
  { title: "Process" },
);
export type Process = Static<typeof Process>;

export const ProcessList = Type.Object({ processes: Type.Array(Process) });

export const ProcessParams = Type.Object({
  id: Type.String({ description: "A capsule's id, cl-…" }),
  selector: Type.String({ description: "A PID, if it is all digits; else a tag." }),
});

export const signals = ["SIGKILL", "SIGTERM"] as const;
export type Signal = (typeof signals)[number];

export const SignalQuery = Type.Object({
  signal: Type.Optional(Type.Unsafe<Signal>({ type: "string", enum: [...signals], default: "SIGKILL" })),
});
