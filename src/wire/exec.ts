/** Running a command: request, results, and the messages of exec stream and attach. */
import Type, { type Static } from "typebox";
import type { Limits } from "./limits.ts";
import { ChosenTag, CommandFields, RefusalCode, Text } from "./schema.ts";
import { messageDecoder } from "./validation.ts";

/** Text for standard input: no lone surrogate, which has no bytes in UTF-8. */
const InputText = { pattern: "^[^\\ud800-\\udfff]*$" };

export function ExecBody(limits: Limits) {
  const timeout = { minimum: 0, maximum: limits.exec_timeout_max_sec };
  return Type.Object({
    cmd: Text({ minLength: 1, description: "Looked up in PATH; no shell." }),
    args: Type.Optional(Type.Array(Text())),
    timeout: Type.Optional(
      Type.Integer({
        ...timeout,
        default: limits.exec_timeout_default_sec,
        description: "Seconds to wait for the exit; 0: for ever. Foreground only.",
      }),
    ),
    timeout_sec: Type.Optional(Type.Integer({ ...timeout, description: "The same as timeout, which wins." })),
    ...CommandFields,
    background: Type.Optional(Type.Boolean({ default: false, description: "Start and return at once." })),
    tag: Type.Optional(Type.String({ ...ChosenTag, description: `Background only. ${ChosenTag.description}` })),
    stdin: Type.Optional(
      Type.Unsafe<string | boolean>({
        type: ["string", "boolean"],
        ...InputText,
        description:
          "Foreground: text that the command reads, then end of file. Background: true keeps standard input open, for " +
          "clients that attach. Otherwise standard input is /dev/null.",
      }),
    ),
    stdin_base64: Type.Optional(
      Type.String({ contentEncoding: "base64", description: "Foreground only: bytes instead of the text `stdin`." }),
    ),
  });
}
export type ExecBody = Static<ReturnType<typeof ExecBody>>;

export const ForegroundResult = Type.Object(
  {
    stdout: Type.String(),
    stderr: Type.String(),
    exit_code: Type.Integer({
      description: "128 + n after death by signal n; 127: the command does not exist or cannot be executed.",
    }),
    duration_ms: Type.Integer(),
    encoding: Type.Unsafe<"utf-8" | "base64">({
      type: "string",
      enum: ["utf-8", "base64"],
      description: "Of both streams.",
    }),
    truncated: Type.Optional(Type.Boolean({ description: "true: output beyond the limit was cut off." })),
  },
  { title: "ForegroundResult" },
);
export type ForegroundResult = Static<typeof ForegroundResult>;

export const BackgroundResult = Type.Object(
  { pid: Type.Integer(), tag: Type.String({ description: "Names the process for kill and attach." }) },
  { title: "BackgroundResult" },
);
export type BackgroundResult = Static<typeof BackgroundResult>;

// ---- Messages of exec stream and attach

const ExecStart = Type.Object({
  type: Type.Literal("start"),
  cmd: Text({ minLength: 1 }),
  args: Type.Optional(Type.Array(Text())),
  ...CommandFields,
  tag: Type.Optional(Type.String(ChosenTag)),
  survive: Type.Optional(
    Type.Boolean({ default: false, description: "When the client goes, it lives on as a background process." }),
  ),
  stdin: Type.Optional(
    Type.Boolean({ default: false, description: "Standard input is open until stdin_end. Otherwise it is /dev/null." }),
  ),
});
const StdinData = Type.Object({
  type: Type.Literal("stdin"),
  data: Type.String({ description: "As text without half a surrogate pair." }),
  encoding: Type.Optional(
    Type.Unsafe<"utf-8" | "base64">({
      type: "string",
      enum: ["utf-8", "base64"],
      default: "utf-8",
      description: "Of data.",
    }),
  ),
});
const StdinEnd = Type.Object({ type: Type.Literal("stdin_end") });
const ExecStop = Type.Object({ type: Type.Literal("stop") });

export const AttachClientMessage = Type.Union([StdinData, StdinEnd]);
/** Standard input, as a client writes it. */
export type StdinMessage = Static<typeof AttachClientMessage>;

export const ExecClientMessage = Type.Union([ExecStart, StdinData, StdinEnd, ExecStop]);
export type ExecClientMessage = Static<typeof ExecClientMessage>;
export type ExecStart = Static<typeof ExecStart>;

const stdinMessages = { stdin: StdinData, stdin_end: StdinEnd };
export const decodeExecMessage = messageDecoder({ start: ExecStart, ...stdinMessages, stop: ExecStop });
export const decodeAttachMessage = messageDecoder(stdinMessages);

const Started = Type.Object({ type: Type.Literal("start"), pid: Type.Integer() });
const Dropped = Type.Object({
  type: Type.Literal("dropped"),
  bytes: Type.Integer({ description: "Output after `from` that is no longer kept, of both streams." }),
});
const offset = Type.Optional(
  Type.Integer({ description: "With offsets=1: bytes of both streams before it; data is base64." }),
);
const outputMessages = [
  Type.Object({ type: Type.Literal("stdout"), data: Type.String(), offset }),
  Type.Object({ type: Type.Literal("stderr"), data: Type.String(), offset }),
  Type.Object({ type: Type.Literal("exit"), exit_code: Type.Integer() }),
  Type.Object({
    type: Type.Literal("error"),
    data: Type.String(),
    code: Type.Optional(RefusalCode),
  }),
] as const;

const StartedExec = Type.Object({
  ...Started.properties,
  tag: Type.Optional(Type.String({ description: "With survive: its name as a background process." })),
});

export const ExecServerMessage = Type.Union([StartedExec, ...outputMessages]);
export type ExecServerMessage = Static<typeof ExecServerMessage>;

export const AttachServerMessage = Type.Union([Started, Dropped, ...outputMessages]);
export type AttachServerMessage = Static<typeof AttachServerMessage>;
