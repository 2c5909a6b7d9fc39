/** API keys, one-time sign-in links and WebSocket tickets on the wire. */
import Type, { type Static } from "typebox";
import { Nullable, Timestamp } from "./schema.ts";

// ---- API keys. The text of a key is in one answer only: that of its creation.

export const keyNameMaxLength = 100;

/** Live keys of one team. */
export const keysMax = 1_000;

export const Key = Type.Object(
  {
    id: Type.String({ pattern: "^key-", description: "Identifies the key; gives no access." }),
    name: Type.String({ description: "What the key is for." }),
    prefix: Nullable(Type.String({ description: "Its first characters; null for keys older than this field." })),
    created_at: Timestamp,
    last_used_at: Nullable({ ...Timestamp, description: "Last request with it." }),
    expires_at: Nullable({ ...Timestamp, description: "When it ends by itself; null: never." }),
    current: Type.Boolean({ description: "This request uses this key." }),
    made_by: Type.Optional(
      Nullable(
        Type.String({
          description:
            "Id of the key that made it; it ends with that one at the latest. Null: the operator made it, or a release before this field.",
        }),
      ),
    ),
  },
  { title: "Key" },
);
export type Key = Static<typeof Key>;

export const KeyList = Type.Object({ keys: Type.Array(Key, { description: "The team's live keys, oldest first." }) });

export const NewKey = Type.Object(
  { ...Key.properties, key: Type.String({ description: "The key itself. It is not shown again." }) },
  { title: "NewKey" },
);

export const CreateKeyBody = Type.Object({
  name: Type.String({
    minLength: 1,
    maxLength: keyNameMaxLength,
    pattern: "^[^\\u0000-\\u001f\\u007f]*$",
    description: "What the key is for.",
  }),
});

export const KeyParams = Type.Object({ id: Type.String({ description: "A key's id, key-…" }) });

// ---- One-time links, by which the owner of a key signs in a browser

export const SignInLink = Type.Object(
  {
    token: Type.String({ description: "For one POST /v1/sign-in. The dashboard reads it from /#token=…" }),
    expires_at: Timestamp,
  },
  { title: "SignInLink" },
);

export const SignInBody = Type.Object({ token: Type.String({ maxLength: 1_000 }) });

export const SignedIn = Type.Object(
  {
    key: Type.String({ description: "For the X-API-Key header until it expires or is revoked." }),
    key_id: Type.String(),
    team: Type.String({ description: "The team's name." }),
    expires_at: Timestamp,
  },
  { title: "SignedIn" },
);

export const Session = Type.Object(
  {
    team: Type.String({ description: "The team's name." }),
    key_id: Type.String(),
    key_name: Type.String(),
    expires_at: Nullable({ ...Timestamp, description: "Of the key; null: never." }),
  },
  { title: "Session" },
);

// ---- One-time tickets, for WebSocket clients that cannot set headers

export const TicketBody = Type.Object({
  path: Type.String({
    pattern: "^/v1/[^?#\\u0000]+$",
    maxLength: 2_048,
    description: "Path of the WebSocket endpoint it is for, without a query.",
  }),
});

export const Ticket = Type.Object(
  {
    ticket: Type.String({ description: "For the query of the upgrade: ?ticket=…" }),
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
      description: "Encoding of data in stdout and stderr. With utf-8, invalid bytes arrive as U+FFFD.",
    }),
  ),
  offsets: Type.Optional(
    Type.Unsafe<"0" | "1">({
      type: "string",
      enum: ["0", "1"],
      default: "0",
      description: "1: stdout and stderr carry their offset, and data is base64.",
    }),
  ),
});
export type OutputSocketQuery = Static<typeof OutputSocketQuery>;
