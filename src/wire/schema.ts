/** Building blocks that the schemas of this folder share. */
import Type, { type Static, type TSchema, type TSchemaOptions } from "typebox";

/** Always present, `null` when there is nothing to say. */
export function Nullable<const T extends TSchema & { type: string }>(schema: T) {
  return Type.Unsafe<Static<T> | null>({ ...schema, type: [schema.type, "null"] });
}

/** Text that goes to the guest's system calls: no NUL, which would end it early, and no half of a surrogate pair. */
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
