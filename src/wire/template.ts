/** Snapshot and base templates on the wire. */
import Type, { type Static } from "typebox";
import { Nullable, Timestamp } from "./schema.ts";

export const templateTypes = ["base", "snapshot"] as const;
export type TemplateType = (typeof templateTypes)[number];

const TemplateTypeSchema = Type.Unsafe<TemplateType>({ type: "string", enum: [...templateTypes] });

export const Template = Type.Object(
  {
    name: Type.String(),
    type: TemplateTypeSchema,
    vcpus: Nullable(Type.Integer({ description: "As captured; null for a base template." })),
    memory_mb: Nullable(Type.Integer({ description: "MiB, as captured; null for a base template." })),
    size_bytes: Type.Integer({ description: "Its files on disk." }),
    created_at: Timestamp,
  },
  { title: "Template" },
);
export type Template = Static<typeof Template>;

export const TemplateList = Type.Array(Template);

export const ListTemplatesQuery = Type.Object({ type: Type.Optional(TemplateTypeSchema) });

/** A limit of the schema. The name itself is checked after the capsule was found and is running. */
export const templateNameMaxLength = 4_096;

export const CaptureBody = Type.Object({
  /** The older name of a capsule, kept for existing clients. */
  sandbox_id: Type.String({ minLength: 1, description: "Id or name of a running capsule. It is destroyed by this." }),
  name: Type.Optional(
    Type.String({
      maxLength: templateNameMaxLength,
      description: "1 to 64 letters, digits, `.`, `_`, `-`, beginning with a letter or digit. Generated when omitted.",
    }),
  ),
});

export const CaptureQuery = Type.Object({
  overwrite: Type.Optional(
    Type.String({ description: "`true` replaces the team's snapshot template of the same name." }),
  ),
});

export const TemplateParams = Type.Object({ name: Type.String() });
