/** The columns of capsule rows, and which of them a change may set. */

/** One row; times are epoch milliseconds. */
export interface CapsuleRow {
  id: string;
  teamId: string;
  /** Unique in the team; null: none. */
  name: string | null;
  /** A JSON object of strings. */
  labels: string;
  status: string;
  /** Incremented by every compare-and-set. */
  revision: number;
  /** The change under way: set before the work begins, cleared with its result. */
  intent: string | null;
  /** Name of the template, as the client gave it. */
  template: string;
  /** Storage id of the snapshot template it came from; null for a base template. */
  storage: string | null;
  /** Name of the template it was paused on, once that is deleted. */
  blockedBy: string | null;
  vcpus: number;
  memoryMb: number;
  /** Size of its disk. */
  diskMb: number;
  timeoutSec: number;
  createdAt: number;
  lastUpdated: number;
  startedAt: number | null;
  lastActiveAt: number | null;
  errorReason: string | null;
  /** Effect of inactivity: `pause` or `destroy`. */
  onTimeout: string;
  /** Longest time in `running`; 0: any. */
  lifetimeSec: number;
  /** When the lifetime of its run ends. Kept while the guest reboots. */
  expiresAt: number | null;
  /** Effect of the lifetime's end: `pause` or `destroy`. */
  onExpiry: string;
  /** Longest time without a VM; 0: any. */
  retentionSec: number;
  /** 1: requests resume it. */
  autoResume: number;
  /** A JSON object; null: that of a capsule that asked for nothing. */
  network: string | null;
}

/** The columns that a compare-and-set may change. */
export type CapsuleChange = Partial<
  Pick<
    CapsuleRow,
    "name" | "status" | "intent" | "blockedBy" | "lastUpdated" | "startedAt" | "lastActiveAt" | "errorReason"
  >
>;

const settings = [
  ...(["name", "labels", "timeoutSec", "onTimeout", "lifetimeSec", "expiresAt"] as const),
  ...(["onExpiry", "retentionSec", "autoResume", "network"] as const),
] as const satisfies readonly (keyof CapsuleRow)[];

/** The columns that a client may change at any time. */
export type CapsuleSettings = Pick<CapsuleRow, (typeof settings)[number]>;

export const columns = {
  id: "id",
  teamId: "team_id",
  name: "name",
  labels: "labels",
  status: "status",
  revision: "generation", // its name in files of earlier releases, whose server may still run on the same file
  intent: "intent",
  template: "template",
  storage: "storage",
  blockedBy: "blocked_by",
  vcpus: "vcpus",
  memoryMb: "memory_mb",
  diskMb: "disk_mb",
  timeoutSec: "timeout_sec",
  createdAt: "created_at",
  lastUpdated: "last_updated",
  startedAt: "started_at",
  lastActiveAt: "last_active_at",
  errorReason: "error_reason",
  onTimeout: "on_timeout",
  lifetimeSec: "lifetime_sec",
  expiresAt: "expires_at",
  onExpiry: "on_expiry",
  retentionSec: "retention_sec",
  autoResume: "auto_resume",
  network: "network",
} as const satisfies Record<keyof CapsuleRow, string>;

export const fields = Object.keys(columns) as (keyof CapsuleRow)[];
export const selection = fields.map((field) => `${columns[field]} AS ${field}`).join(", ");

/** Sets the columns that a client may change at any time. */
export const settingsAssigned = settings.map((field) => `${columns[field]} = :${field}`).join(", ");

/**
 * Sets the columns of `change`, the revision, and the end of the lifetime with them: it counts from a start, ends with the run, and stays while the
 * guest reboots. In SQL, since a client may change the lifetime while the capsule starts. A capsule that is not paused, or not paused any
 * more, is not on its way to another host.
 */
export function assigned(change: CapsuleChange): string {
  const names = Object.keys(change) as (keyof CapsuleChange)[];
  const sets = names.map((name) => `${columns[name]} = :${name}`);
  if (change.startedAt !== undefined)
    sets.push("expires_at = COALESCE(expires_at, :startedAt + NULLIF(lifetime_sec, 0) * 1000)");
  else if (change.status !== undefined) sets.push("expires_at = CASE WHEN :status = 'starting' THEN expires_at END");
  sets.push(`moving = CASE WHEN ${change.status === undefined ? "status" : ":status"} = 'paused' THEN moving END`);
  return [...sets, "generation = generation + 1"].join(", ");
}
