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

const isChecked = Symbol("checked by its route");

/** A schema for the description only: the route checks the value, whatever it is. */
export function checkedByRoute<const T extends TSchema>(schema: T): T {
  return Object.assign(schema, { [isChecked]: true });
}

/** Without the parts that routes check: the body itself, or fields of it. */
export function withoutChecked(schema: TSchema): TSchema {
  if (isChecked in schema) return {};
  const { properties } = schema as { properties?: Record<string, TSchema> };
  if (properties === undefined) return schema;
  const kept = Object.entries(properties).map(([name, field]) => [name, isChecked in field ? {} : field]);
  return { ...schema, properties: Object.fromEntries(kept) } as TSchema;
}

export const Timestamp = Type.String({ format: "date-time", description: "ISO 8601, UTC, milliseconds, Z." });

/** Environment variables. No `=` and no NUL can stand in a name. */
export const Environment = Type.Record(Type.String({ pattern: "^[^=\\u0000\\ud800-\\udfff]+$" }), Text(), {
  additionalProperties: false,
  description: "Environment variables, on top of the defaults.",
});

/** Every start of a command and of a terminal takes these. */
export const CommandFields = {
  envs: Type.Optional(Environment),
  cwd: Type.Optional(Text({ minLength: 1, description: "Working directory. Default: the user's home directory." })),
  user: Type.Optional(
    Text({
      minLength: 1,
      description:
        "Name of a user of the capsule, or a decimal uid of at most 2147483647; a name of digits goes first. The command has its " +
        "groups and its HOME; a uid without a name has group 0 and HOME `/`. Default: root.",
    }),
  ),
};

/** A name that a client gives a process. */
export const ChosenTag = {
  pattern: "^(?=.*[^0-9])[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$",
  description: "Names the process. Must hold a character that is no digit. A live process has it: 409.",
};

/** The code of an `error` message. */
export const RefusalCode = Type.String({
  description:
    "Why the process could not be started, followed or written to: `command_not_found`, the program does not exist or cannot be " +
    "executed, or the code that the same refusal has as an HTTP answer.",
});

export const CapsuleParams = Type.Object({ id: Type.String({ description: "A capsule's id, cl-…, or its name." }) });

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
              "`reason`. timeout of an exec: the output so far. `action` is `resume` where the resume of a capsule with auto_resume " +
              "was refused.",
          },
        ),
      ),
    }),
  },
  { title: "Error" },
);
export type ErrorBody = Static<typeof ErrorBody> & { error: { code: ErrorCode } };
