/** Files inside a capsule. */
import Type, { type Static } from "typebox";
import type { Limits } from "./limits.ts";
import { Nullable, Text } from "./schema.ts";

const standIns = "A byte that is no UTF-8 stands as the character U+10F800 + byte.";
export const GuestPath = Type.String({
  pattern: "^/[^\\u0000]*$",
  description: `Absolute, inside the capsule. ${standIns}`,
});

export const PathBody = Type.Object({ path: GuestPath });

export function ListBody(limits: Limits) {
  return Type.Object({
    path: GuestPath,
    depth: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: limits.list_depth_max,
        default: 1,
        description: "0: the directory itself; 1: its children; more: further down.",
      }),
    ),
  });
}

export const archivePathsMax = 1_000;

export const ArchiveBody = Type.Object({
  paths: Type.Array(GuestPath, {
    minItems: 1,
    maxItems: archivePathsMax,
    description: "Files, links and directories, these with all in them.",
  }),
  format: Type.Optional(Type.Unsafe<"tar" | "tar.gz">({ type: "string", enum: ["tar", "tar.gz"], default: "tar" })),
  base: Type.Optional(
    Type.String({
      pattern: "^/[^\\u0000]*$",
      description: "All paths lie in it, and names in the archive are relative to it. By default `/`.",
    }),
  ),
});

export const ExtractQuery = Type.Object({
  path: Type.String({ pattern: "^/[^\\u0000]*$", description: `An existing directory. ${standIns}` }),
});

export const MoveBody = Type.Object({
  from: GuestPath,
  to: GuestPath,
  overwrite: Type.Optional(
    Type.Boolean({ default: false, description: "A file or link at `to` is replaced; a directory never is." }),
  ),
});

export const modePattern = "^[0-7]{3,4}$";
const recursive = Type.Optional(
  Type.Boolean({ default: false, description: "All below it too; no link there is followed, no mount point entered." }),
);

export const ChmodBody = Type.Object({
  path: GuestPath,
  mode: Type.String({ pattern: modePattern, description: "Three or four octal digits." }),
  recursive,
});

/** Longest name of a user or group. */
export const accountMaxLength = 256;
const account = { minLength: 1, maxLength: accountMaxLength };

export const ChownBody = Type.Object({
  path: GuestPath,
  owner: Type.Optional(Text({ ...account, description: "A user of the guest, or a decimal uid." })),
  group: Type.Optional(
    Text({ ...account, description: "A group of the guest, or a decimal gid. Without it, it stays." }),
  ),
  recursive,
});

/** As multipart/form-data; the fields may come in any order. */
export const WriteForm = Type.Object({
  path: Type.String({
    description: `Absolute, inside the capsule; its directory must exist, or \`parents\` be true. ${standIns}`,
  }),
  file: Type.String({ format: "binary" }),
  parents: Type.Optional(
    Type.Unsafe<"true" | "false">({
      type: "string",
      enum: ["true", "false"],
      default: "false",
      description: "Missing directories are made, 0755 and of the same owner.",
    }),
  ),
  mode: Type.Optional(
    Type.String({
      pattern: modePattern,
      description: "Three or four octal digits. Default: the old file's, or 0644.",
    }),
  ),
  owner: Type.Optional(
    Text({
      ...account,
      description:
        "A user of the guest, whose first group the file gets, or a decimal uid. Default: the old file's, or root.",
    }),
  ),
});

export const FileEntry = Type.Object(
  {
    name: Type.String({ description: standIns }),
    path: Type.String({ description: "Leads back to this file in other requests." }),
    type: Type.Unsafe<"file" | "directory" | "symlink">({ type: "string", enum: ["file", "directory", "symlink"] }),
    size: Type.Integer(),
    permissions: Type.String({ description: "As in -rw-r--r--" }),
    owner: Type.String(),
    group: Type.String(),
    modified_at: Type.Integer({ description: "Unix seconds." }),
    symlink_target: Nullable(Type.String({ description: "As it is written in the link, in the form of `name`." })),
  },
  { title: "FileEntry" },
);
export type FileEntry = Static<typeof FileEntry>;

export const FileListing = Type.Object({ entries: Type.Array(FileEntry, { description: "By path." }) });
export const OneEntry = Type.Object({ entry: FileEntry });
