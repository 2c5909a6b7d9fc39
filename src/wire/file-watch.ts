/** The WebSocket of files/watch on the wire. */
import Type, { type Static } from "typebox";
import { SocketQuery } from "./credentials.ts";

export const WatchQuery = Type.Object({
  ...SocketQuery.properties,
  path: Type.String({ description: "Absolute path of a directory. A link at its end is refused." }),
  recursive: Type.Optional(
    Type.Unsafe<"true" | "false">({
      type: "string",
      enum: ["true", "false"],
      default: "false",
      description: "All directories below it too, those that are made later included.",
    }),
  ),
});

const path = Type.String({ description: "Absolute path." });
const plainEvents = ["create", "write", "remove", "chmod"] as const;

const PlainChange = Type.Object({
  type: Type.Literal("event"),
  event: Type.Unsafe<(typeof plainEvents)[number]>({
    type: "string",
    enum: [...plainEvents],
    description: "`create`: made or moved in; `remove`: removed or moved out; `chmod`: another mode, owner or time.",
  }),
  path,
});
const Renaming = Type.Object({
  type: Type.Literal("event"),
  event: Type.Literal("rename"),
  path,
  to: Type.String({ description: "Its new path." }),
});

export const WatchServerMessage = Type.Union([
  Type.Object({ type: Type.Literal("ready") }, { description: "Every change from now on is told." }),
  PlainChange,
  Renaming,
  Type.Object(
    { type: Type.Literal("overflow") },
    { description: "Changes were lost: list the directory anew. The watch goes on." },
  ),
  Type.Object({ type: Type.Literal("error"), data: Type.String(), code: Type.Optional(Type.String()) }),
]);
export type WatchServerMessage = Static<typeof WatchServerMessage>;
