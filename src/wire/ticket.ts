/** One-time tickets: how a WebSocket client that can set no headers shows whose it is. */
import Type from "typebox";
import { Timestamp } from "./schema.ts";

export const TicketBody = Type.Object({
  path: Type.String({
    pattern: "^/v1/[^?#\\u0000]+$",
    maxLength: 2_048,
    description: "Path of the WebSocket endpoint it is for, without a query.",
  }),
});

export const Ticket = Type.Object(
  {
    ticket: Type.String({ description: "Goes into the query of the upgrade: ?ticket=…" }),
    expires_at: Timestamp,
  },
  { title: "Ticket" },
);

export const SocketQuery = Type.Object({
  ticket: Type.Optional(Type.String({ description: "Instead of the X-API-Key header." })),
});

export const OutputSocketQuery = Type.Object({
  ...SocketQuery.properties,
  encoding: Type.Optional(
    Type.Unsafe<"utf-8" | "base64">({
      type: "string",
      enum: ["utf-8", "base64"],
      default: "utf-8",
      description: "Of data in stdout and stderr. As utf-8, bytes that are none arrive as U+FFFD.",
    }),
  ),
});
