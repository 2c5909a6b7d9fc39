/** Schemas that the files of this folder share, and the body of every error. */
import Type, { type Static, type TSchema, type TSchemaOptions } from "typebox";
import { type ErrorCode, statusOf } from "./errors.ts";

/** A field that is always present, and may be null. */
export function Nullable<const T extends TSchema & { type: string }>(schema: T) {
  return Type.Unsafe<Static<T> | null>({ ...schema, type: [schema.type, "null"] });
}

/** Text for system calls in the guest: no NUL, which would end it early, and no lone surrogate. */
export function Text(options: TSchemaOptions & { minLength?: number; maxLength?: number } = {}) {
  return Type.String({ pattern: "^[^\\u0000\\ud800-\\udfff]*$", ...options });
}

export const Timestamp = Type.String({ format: "date-time", description: "ISO 8601, UTC, milliseconds, Z." });

/** Environment variables. No `=` and no NUL can stand in a name. */
export const Environment = Type.Record(Type.String({ pattern: "^[^=\\u0000\\ud800-\\udfff]+$" }), Text(), {
  additionalProperties: false,
  description: "Environment variables, on top of the defaults.",
});

export const CapsuleParams = Type.Object({ id: Type.String({ description: "A capsule's id, cl-…" }) });

/** The body of every answer with a status above 399. */
export const ErrorBody = Type.Object(
  {
    error: Type.Object({
      code: Type.String({ enum: Object.keys(statusOf), description: "Stable, for programs." }),
      message: Type.String({ description: "What failed, for people." }),
      details: Type.Optional(
        Type.Object(
          {},
          {
            additionalProperties: true,
            description:
              "For programs, by code. quota_exceeded: `quota`, `used` and `limit`. no_space: `shortage`, `quota` of the team or " +
              "`reserve` of the host's disk, or `needed_bytes` and `free_bytes` of that disk. invalid_request: `field`, or " +
              "`reason`. timeout of an exec: the output so far.",
          },
        ),
      ),
    }),
  },
  { title: "Error" },
);
export type ErrorBody = Static<typeof ErrorBody> & { error: { code: ErrorCode } };
