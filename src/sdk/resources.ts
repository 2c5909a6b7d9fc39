/**
 * What the service tells of, as plain objects: the API's resources with camelCase names. Written out here, so that this
 * package needs no other's types; `resources.test.ts` holds them against the contract.
 */

export type CapsuleStatus = "pending" | "starting" | "running" | "paused" | "stopped" | "error";

/** Times are ISO 8601, UTC, with milliseconds. */
export interface CapsuleInfo {
  /** `cl-…`; never reused. */
  id: string;
  status: CapsuleStatus;
  /** Name of the template it was made from. */
  template: string;
  vcpus: number;
  /** MiB. */
  memoryMb: number;
  /** Inactivity until it is paused by itself, seconds; 0: never. */
  timeoutSec: number;
  createdAt: string;
  /** Last change of status. */
  lastUpdated: string;
  /** When it last reached `running`. */
  startedAt: string | null;
  /** Last command or ping. */
  lastActiveAt: string | null;
  /** Why it is in status `error` or `stopped`. */
  errorReason: string | null;
}

export interface TemplateInfo {
  name: string;
  /** `base`: comes with the service; `snapshot`: captured from a capsule. */
  type: "base" | "snapshot";
  vcpus: number | null;
  /** MiB. */
  memoryMb: number | null;
  /** Its files on the service's disk. */
  sizeBytes: number;
  createdAt: string;
}

export interface FileEntry {
  name: string;
  /** Absolute. */
  path: string;
  type: "file" | "directory" | "symlink";
  /** Bytes. */
  size: number;
  /** As in `-rw-r--r--`. */
  permissions: string;
  owner: string;
  group: string;
  /** Unix seconds. */
  modifiedAt: number;
  /** As it is written in the link. */
  symlinkTarget: string | null;
}

export interface ProcessInfo {
  pid: number;
  /** Empty for what init or the template started. */
  tag: string;
  cmd: string;
  args: string[];
}

export interface KeyInfo {
  /** `key-…`; names the key, and opens nothing. */
  id: string;
  name: string;
  /** Its first characters. */
  prefix: string | null;
  createdAt: string;
  lastUsedAt: string | null;
  /** null: never. */
  expiresAt: string | null;
  /** It is the key that this client uses. */
  current: boolean;
}

/** `key` is shown this once. */
export interface NewKey extends KeyInfo {
  key: string;
}

export interface SessionInfo {
  /** The team's name. */
  team: string;
  keyId: string;
  keyName: string;
  expiresAt: string | null;
}

export interface SignInLink {
  /** Opens the dashboard once, within minutes. */
  url: string;
  expiresAt: string;
}

export interface HealthInfo {
  ready: boolean;
  version: string;
  /** `kvm`: hardware virtualization; `tcg`: software emulation, slower. */
  accelerator: string;
  acceleratorReason: string;
  /** Capsules of all teams, by status. */
  capsules: Record<string, number>;
}

/** The numbers a client can run into. The service may tell of more than these. */
export interface LimitInfo {
  /** Virtual CPUs of one capsule. */
  vcpusMax: number;
  /** MiB. */
  memoryMinMb: number;
  memoryMaxMb: number;
  /** Longest inactivity time, seconds. */
  timeoutMaxSec: number;
  /** Capsules of one team. */
  capsulesMax: number;
  execTimeoutDefaultSec: number;
  execTimeoutMaxSec: number;
  /** Kept of each stream of an `exec`. */
  execOutputMaxBytes: number;
  listEntriesMax: number;
  listDepthMax: number;
  pathMaxBytes: number;
  [more: string]: unknown;
}

export type ServiceEvent =
  /** What came before is not known, or not any more: list again. Everything after it is told. */
  | { type: "reset"; reason: "new" | "missed" }
  | { type: "capsule"; capsule: CapsuleInfo }
  | { type: "capsule-removed"; id: string }
  | { type: "template"; template: TemplateInfo }
  | { type: "template-removed"; name: string };
