/** Messages of a terminal session; `data` of input and output is base64. */
import Type, { type Static } from "typebox";
import { ChosenTag, CommandFields, RefusalCode, Text } from "./schema.ts";
import { messageDecoder } from "./validation.ts";

const Columns = Type.Integer({ minimum: 1, maximum: 65_535 });
export const ptyDefaults = { cmd: "/bin/bash", cols: 80, rows: 24 } as const;

const PtyStart = Type.Object({
  type: Type.Literal("start"),
  cmd: Type.Optional(Text({ minLength: 1, default: ptyDefaults.cmd })),
  args: Type.Optional(Type.Array(Text())),
  cols: Type.Optional(Type.Integer({ ...Columns, default: ptyDefaults.cols })),
  rows: Type.Optional(Type.Integer({ ...Columns, default: ptyDefaults.rows })),
  ...CommandFields,
  tag: Type.Optional(Type.String(ChosenTag)),
});
const PtyConnect = Type.Object({
  type: Type.Literal("connect"),
  tag: Text({ minLength: 1, maxLength: 64 }),
  from: Type.Optional(Type.Literal("start", { description: "The last 256 KiB of the session first, then live." })),
});
const PtyInput = Type.Object({ type: Type.Literal("input"), data: Type.String({ contentEncoding: "base64" }) });
const PtyResize = Type.Object({ type: Type.Literal("resize"), cols: Columns, rows: Columns });
const PtyKill = Type.Object({ type: Type.Literal("kill") });

export const PtyClientMessage = Type.Union([PtyStart, PtyConnect, PtyInput, PtyResize, PtyKill]);
export type PtyClientMessage = Static<typeof PtyClientMessage>;
export type PtyStart = Static<typeof PtyStart>;
export type PtyConnect = Static<typeof PtyConnect>;

export const decodePtyMessage = messageDecoder({
  start: PtyStart,
  connect: PtyConnect,
  input: PtyInput,
  resize: PtyResize,
  kill: PtyKill,
});

export const PtyServerMessage = Type.Union([
  Type.Object({ type: Type.Literal("started"), tag: Type.String(), pid: Type.Integer() }),
  Type.Object({ type: Type.Literal("output"), data: Type.String() }),
  Type.Object({ type: Type.Literal("exit"), exit_code: Type.Integer() }),
  Type.Object({
    type: Type.Literal("error"),
    data: Type.String(),
    fatal: Type.Boolean(),
    code: Type.Optional(RefusalCode),
  }),
  Type.Object({ type: Type.Literal("ping") }),
]);
export type PtyServerMessage = Static<typeof PtyServerMessage>;
