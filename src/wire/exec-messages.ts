/** Messages of exec stream and attach: text both ways; an attached client has nothing to say. */
import Type, { type Static } from "typebox";
import { messageDecoder } from "./messages.ts";
import { Environment, Text } from "./schema.ts";

const ExecStart = Type.Object({
  type: Type.Literal("start"),
  cmd: Text({ minLength: 1 }),
  args: Type.Optional(Type.Array(Text())),
  envs: Type.Optional(Environment),
  cwd: Type.Optional(Text({ minLength: 1 })),
});
const ExecStop = Type.Object({ type: Type.Literal("stop") });

export const ExecClientMessage = Type.Union([ExecStart, ExecStop]);
export type ExecClientMessage = Static<typeof ExecClientMessage>;
export type ExecStart = Static<typeof ExecStart>;

export const decodeExecMessage = messageDecoder({ start: ExecStart, stop: ExecStop });

export const ExecServerMessage = Type.Union([
  Type.Object({ type: Type.Literal("start"), pid: Type.Integer() }),
  Type.Object({ type: Type.Literal("stdout"), data: Type.String() }),
  Type.Object({ type: Type.Literal("stderr"), data: Type.String() }),
  Type.Object({ type: Type.Literal("exit"), exit_code: Type.Integer() }),
  Type.Object({ type: Type.Literal("error"), data: Type.String() }),
]);
export type ExecServerMessage = Static<typeof ExecServerMessage>;
