/** API keys on the wire. A key's text is in one answer only: that of its making. */
import Type, { type Static } from "typebox";
import { Nullable, Timestamp } from "./schema.ts";

export const keyNameMaxLength = 100;

export const Key = Type.Object(
  {
    id: Type.String({ pattern: "^key-", description: "Names the key, and opens nothing." }),
    name: Type.String({ description: "What its maker called it." }),
    prefix: Nullable(Type.String({ description: "Its first characters; null for keys older than this field." })),
    created_at: Timestamp,
    last_used_at: Nullable({ ...Timestamp, description: "Last request with it." }),
    expires_at: Nullable({ ...Timestamp, description: "When it ends by itself; null: never." }),
    current: Type.Boolean({ description: "It is the key of this very request." }),
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
    description: "What it is for, for people.",
  }),
});

export const KeyParams = Type.Object({ id: Type.String({ description: "A key's id, key-…" }) });
