/** The audit log on the wire. */
import Type, { type Static } from "typebox";
import { Nullable, Timestamp } from "./schema.ts";

/** Actions that get an entry: every change, every command, and every read of what is in a capsule. */
export const auditActions = [
  "capsule.create",
  "capsule.update",
  "capsule.pause",
  "capsule.resume",
  "capsule.stop",
  "capsule.start",
  "capsule.reboot",
  "capsule.destroy",
  "capsule.end",
  "template.create",
  "template.delete",
  "exec",
  "pty",
  "process.list",
  "process.attach",
  "process.kill",
  "process.logs",
  "file.read",
  "file.list",
  "file.write",
  "file.mkdir",
  "file.remove",
  "file.move",
  "file.chmod",
  "file.chown",
  "file.url",
  "file.archive",
  "file.extract",
  "file.watch",
  "port.list",
  "port.connect",
  "port.url",
  "port.revoke",
  "network.update",
  "key.create",
  "key.revoke",
  "sign-in-link.create",
  "sign-in",
  "ticket.create",
  "disk.throttle",
  "disk.unthrottle",
] as const;
export type AuditAction = (typeof auditActions)[number];

const pageMax = 1_000;
export const auditPageDefault = 100;

export const AuditQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: pageMax, default: auditPageDefault })),
  before: Type.Optional(Type.String({ pattern: "^[0-9]{1,15}$", description: "`next` of the page before this one." })),
  capsule: Type.Optional(Type.String({ maxLength: 64, description: "Only entries of this capsule." })),
});

export const AuditEntry = Type.Object(
  {
    id: Type.String(),
    at: Timestamp,
    key_id: Type.String({
      description: "Id of the key; `operator`: a command on the server's own machine; empty: the service itself.",
    }),
    key_name: Type.String(),
    address: Type.String({ description: "The network address that the request came from." }),
    action: Type.Unsafe<AuditAction>({ type: "string", enum: [...auditActions] }),
    capsule_id: Nullable(Type.String()),
    subject: Nullable(
      Type.String({
        description:
          "The command (without its arguments), path, process, session, template or key concerned; of an entry for several " +
          "refused requests, their number.",
      }),
    ),
    status: Type.Integer({
      description:
        "HTTP status of the answer; 101: started over a WebSocket; 499: the client closed the connection first.",
    }),
    exit_code: Nullable(
      Type.Integer({
        description:
          "Exit code of the command or terminal. null: it runs, it ended without its client, it runs in the background, or the " +
          "entry is of another action.",
      }),
    ),
  },
  { title: "AuditEntry" },
);
export type AuditEntry = Static<typeof AuditEntry>;

export const AuditPage = Type.Object(
  {
    entries: Type.Array(AuditEntry, { description: "Newest first." }),
    next: Nullable(Type.String({ description: "`before` of the next page; null: this is the last." })),
  },
  { title: "AuditPage" },
);
