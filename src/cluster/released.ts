/**
 * Capsules that no host holds, as PostgreSQL's rows have them: the capsule's columns, its checkpoint in the bucket, and all else that its
 * last holder had of it. The database is not trusted: each value is checked before one of them is used.
 */
import { retained, type Status, statuses } from "../capsules/lifecycle.ts";
import type { Capsule } from "../capsules/store.ts";
import { type CapsuleRow, columns, fields } from "../db/capsule-columns.ts";
import { type KeptColumns, keptNames } from "../db/holding-rows.ts";
import { deadlineActions } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { columnsOf } from "./rows.ts";

export interface Checkpoint {
  /** The beginning of its objects' names in the bucket; its manifest is the object `manifest` behind it. */
  prefix: string;
  /** The hash of the manifest's object, hexadecimal. */
  manifestSha256: string;
  /** The sum of its files: the room that a fetch needs. */
  bytes: number;
  /** When the upload ended, in ms since 1970 by its host's clock. */
  at: number;
  /** Revision of the capsule's row when it was released: until that changes, the checkpoint is all of the capsule. */
  revision: number;
  /** Revision in the files themselves: that of the row while it was being paused. With the epoch of the release it is of no other one. */
  savedRevision: number;
  /** As it stands in the manifest of a checkpoint on disk; whether this machine can restore it is checked by `host`. */
  machine: Readonly<Record<string, unknown>>;
  /** As `host` has described the files (MovedRecord), and compares them when they are fetched. */
  record: Readonly<Record<string, unknown>>;
  /** Null: not recorded, and any build of its version will do. */
  qemuBuild: string | null;
  /** Format of the checkpoint on disk. A host takes none that is later than its own. */
  format: number;
}

export interface Releasable {
  row: CapsuleRow;
  kept: KeptColumns;
  checkpoint: Checkpoint;
  /** It was running, and is paused for its way to another host; default: no. */
  isMoving?: boolean;
}

export interface Released extends Releasable {
  row: Capsule;
  isMoving: boolean;
  /** Null: no host holds it. */
  host: string | null;
  epoch: number;
  /** The host whose checkpoint it is; it may have the files still. */
  lastHost: string | null;
}

const textMax = 1 << 20;
/** Sealed variables, values of injected headers and secrets, as JSON. */
const keptMax = 16 << 20;
const [machineMax, namesMax] = [1 << 16, 512];

/** The row of release_capsule. */
export function releaseColumns({ row, kept, checkpoint, isMoving = false }: Releasable): Record<string, unknown> {
  const { prefix, manifestSha256, bytes, at, revision, machine, record, qemuBuild, format } = checkpoint;
  return {
    ...columnsOf(row),
    ...{ checkpoint: prefix, checkpoint_sha256: manifestSha256, checkpoint_bytes: bytes, checkpoint_at: at },
    ...{ checkpoint_revision: revision, machine, record, qemu_build: qemuBuild, format, kept: encodeKept(kept) },
    moving: isMoving ? true : null,
  };
}

/** A row as to_jsonb, or acquire_capsule, gives it. Throws CapsuleError "agent_error" where something is not what a release writes. */
export function decodeReleased(value: unknown): Released {
  const of = isObject(value) ? value : {};
  const wrong = (name: string) =>
    new CapsuleError("agent_error", `a row of the cluster's database cannot be used: its ${name} is not valid`);
  const id = String(of.id).slice(0, 100);
  for (const [name, isRight] of Object.entries(checks)) {
    if (!isRight(of[name])) throw wrong(`${name} (of capsule ${id})`);
  }
  const row = Object.fromEntries(fields.map((field) => [field, of[nameOf(columns[field])]])) as unknown as Capsule;
  if (row.intent !== null || of.checkpoint_revision !== row.revision) throw wrong(`revision (of capsule ${id})`);
  if (!(of.checkpoint as string).startsWith(`capsules/${row.id}/`)) throw wrong(`checkpoint (of capsule ${id})`);
  const kept = decodeKept(of.kept as string);
  if (kept === undefined) throw wrong(`kept (of capsule ${id})`);
  return {
    ...{
      row,
      kept,
      host: of.host as string | null,
      epoch: of.epoch as number,
      lastHost: of.last_host as string | null,
      isMoving: of.moving === true,
    },
    checkpoint: {
      ...{ prefix: of.checkpoint as string, manifestSha256: of.checkpoint_sha256 as string },
      ...{ bytes: of.checkpoint_bytes as number, at: of.checkpoint_at as number },
      ...{ machine: of.machine as Record<string, unknown>, qemuBuild: of.qemu_build as string | null },
      ...{ record: of.record as Record<string, unknown>, revision: row.revision },
      savedRevision: (of.record as { revision: number }).revision,
      format: of.format as number,
    },
  };
}

/** As `acquire_capsule` returns it for a resume: with the intent that it has admitted. */
export function withoutIntent(value: unknown): unknown {
  return isObject(value) ? { ...value, intent: null } : value;
}

type Check = (value: unknown) => boolean;

const nameOf = (column: string) => (column === "generation" ? "revision" : column);
const isText: Check = (value) => typeof value === "string" && value.length <= textMax;
const isName: Check = (value) => typeof value === "string" && value.length > 0 && value.length <= namesMax;
const isCount: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isFlag: Check = (value) => value === 0 || value === 1;
const isId: Check = (value) => typeof value === "string" && /^cl-[a-z0-9-]{1,64}$/.test(value);
const isHash: Check = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
const orNull =
  (check: Check): Check =>
  (value) =>
    value === null || check(value);
const isPrefix: Check = (value) =>
  typeof value === "string" && /^capsules\/cl-[a-z0-9-]{1,64}\/[0-9a-f.]{1,80}$/.test(value);
const isOneOf =
  (values: readonly string[]): Check =>
  (value) =>
    values.includes(value as string);
const isStatus: Check = (value) => statuses.includes(value as Status) && retained.includes(value as Status);
const isAction = isOneOf(deadlineActions);
const isJson: Check = (value) => {
  if (!isText(value)) return false;
  try {
    return isObject(JSON.parse(value as string));
  } catch {
    return false;
  }
};
const isMachine: Check = (value) => isObject(value) && JSON.stringify(value).length <= machineMax;
const isRecord: Check = (value) => isMachine(value) && isCount((value as Record<string, unknown>).revision);

const checks: Readonly<Record<string, Check>> = {
  ...{ id: isId, team_id: isName, name: orNull(isName), labels: isJson, status: isStatus, revision: isCount },
  ...{ intent: orNull(isName), template: isName, storage: orNull(isName), blocked_by: orNull(isName) },
  ...{ vcpus: isCount, memory_mb: isCount, disk_mb: isCount, timeout_sec: isCount, created_at: isCount },
  ...{ last_updated: isCount, started_at: orNull(isCount), last_active_at: orNull(isCount) },
  ...{ error_reason: orNull(isText), on_timeout: isAction, lifetime_sec: isCount, expires_at: orNull(isCount) },
  ...{ on_expiry: isAction, retention_sec: isCount, auto_resume: isFlag, network: orNull(isJson) },
  ...{ host: orNull(isName), epoch: isCount, last_host: orNull(isName) },
  ...{ checkpoint: isPrefix, checkpoint_sha256: isHash, checkpoint_bytes: isCount, checkpoint_at: isCount },
  ...{
    checkpoint_revision: isCount,
    machine: isMachine,
    record: isRecord,
    qemu_build: orNull(isName),
    format: isCount,
  },
  kept: (value) => typeof value === "string" && value.length <= keptMax,
  moving: (value) => value === undefined || value === null || typeof value === "boolean",
};

/** Bytes as base64. */
export function encodeKept(kept: KeptColumns): string {
  return JSON.stringify(kept, (_name, value: unknown) => {
    // Buffer.toJSON has been called already; a Uint8Array has none.
    if (isObject(value) && value.type === "Buffer")
      return { base64: Buffer.from(value.data as number[]).toString("base64") };
    return value instanceof Uint8Array ? { base64: Buffer.from(value).toString("base64") } : value;
  });
}

/** Undefined: it is none. */
export function decodeKept(text: string): KeptColumns | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isObject(value)) return undefined;
  const kept: Record<string, unknown> = {};
  for (const name of keptNames) {
    const each = value[name];
    const decoded = keptChecks[name](each);
    if (decoded === undefined) return undefined;
    kept[name] = decoded;
  }
  return kept as unknown as KeptColumns;
}

/** The value as SQLite takes it; undefined: it is none. */
type Decoder = (value: unknown) => Uint8Array | string | number | null | undefined;

const bytesOf: Decoder = (value) => {
  if (value === null) return null;
  if (!isObject(value) || typeof value.base64 !== "string") return undefined;
  return new Uint8Array(Buffer.from(value.base64, "base64"));
};
const countOf: Decoder = (value) => (isCount(value) ? (value as number) : undefined);
const textOf: Decoder = (value) => (value === null || typeof value === "string" ? value : undefined);

const keptChecks: Readonly<Record<keyof KeptColumns, Decoder>> = {
  ...{ url_secret: bytesOf, envs: bytesOf, inject: textOf, port_secret: bytesOf },
  ...{ connections: countOf, connections_denied: countOf, bytes_out: countOf, bytes_in: countOf },
};

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
