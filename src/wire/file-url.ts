/** Signed URLs of files. */
import Type from "typebox";
import { GuestPath } from "./file.ts";
import { Timestamp } from "./schema.ts";

/** Longest life: a week. */
export const urlMaxSec = 604_800;
export const urlDefaultSec = 3_600;

export type UrlMethod = "GET" | "PUT";

export const UrlBody = Type.Object({
  path: GuestPath,
  method: Type.Optional(
    Type.Unsafe<UrlMethod>({
      type: "string",
      enum: ["GET", "PUT"],
      default: "GET",
      description: "GET: reads the file. PUT: writes it.",
    }),
  ),
  expires_sec: Type.Optional(
    Type.Integer({ minimum: 1, maximum: urlMaxSec, default: urlDefaultSec, description: "Life of the URL." }),
  ),
});

export const SignedUrl = Type.Object(
  {
    url: Type.String({
      format: "uri",
      description: "Needs no key. Opens this path by this method, at the address that the request came to.",
    }),
    expires_at: { ...Timestamp, description: "It ends before with the key that made it and with the capsule." },
  },
  { title: "SignedUrl" },
);

/** The query of a signed URL. */
export const SignedQuery = Type.Object({
  path: Type.String(),
  expires: Type.String({ description: "Unix milliseconds." }),
  key: Type.String({ description: "Id of the key that made it." }),
  signature: Type.String(),
});
