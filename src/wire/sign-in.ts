/** How a person with a browser gets a key for it: a one-time link, made by somebody who has a key already. */
import Type from "typebox";
import { Nullable, Timestamp } from "./schema.ts";

export const SignInLink = Type.Object(
  {
    token: Type.String({ description: "Good for one POST /v1/sign-in. The dashboard takes it from /#token=…" }),
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
