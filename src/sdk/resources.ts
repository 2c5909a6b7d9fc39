/**
 * The API's resources as plain objects with camelCase names. Declared here and not derived from the schemas, so that
 * this package needs no other's types; `resources.test.ts` holds them against the contract.
 */

export type CapsuleStatus = "pending" | "starting" | "running" | "paused" | "stopped" | "error";

/** Effect of a deadline on a running capsule. */
export type DeadlineAction = "pause" | "destroy";

/** The destinations of a capsule: none, those that `allow` names, every public address. */
export type Egress = "none" | "allowlist" | "public";

/** The network of a capsule as it was asked for. */
export interface NetworkInfo {
  egress: Egress;
  /** Domains, `*.` and a domain, IPv4 addresses and ranges, each with `:port` or without. */
  allow: string[];
  /** IPv4 addresses and ranges, each with `:port` or without; they go before `allow`. */
  deny: string[];
  /** Ports whose URL asks for no key. */
  publicPorts: number[];
  /** The Host that servers in the capsule see, such as `localhost:{port}`; null: the client's. */
  hostHeader: string | null;
  /** Requests to http://{host} leave as HTTPS with these headers; their values are not told. */
  inject: { host: string; headers: Record<string, null> }[];
}

/** Times are ISO 8601, UTC, with milliseconds. */
export interface CapsuleInfo {
  /** `cl-…`; never reused. */
  id: string;
  /** Stands for the id in calls; null: none. */
  name: string | null;
  /** The team's own notes. */
  labels: Record<string, string>;
  status: CapsuleStatus;
  /** Name of the template it was made from. */
  template: string;
  vcpus: number;
  /** MiB. */
  memoryMb: number;
  /** MiB; what is written counts against quotas, not the size. */
  diskMb: number;
  /** Seconds without a command after which `onTimeout` happens; 0: never. */
  timeoutSec: number;
  onTimeout: DeadlineAction;
  /** Longest time in `running`, in seconds; 0: any. */
  lifetimeSec: number;
  /** When its lifetime ends; null: it does not run, or has none. */
  expiresAt: string | null;
  /** Effect of its lifetime's end. */
  onExpiry: DeadlineAction;
  /** Seconds in `paused`, `stopped` or `error` after which it is destroyed; 0: never. */
  retentionSec: number;
  /** Calls that need it running resume it. */
  autoResume: boolean;
  network: NetworkInfo;
  /** The URL of each of its ports, with `{port}` in the port's place. */
  portUrl: string;
  createdAt: string;
  /** Last change of status. */
  lastUpdated: string;
  /** When it last reached `running`. */
  startedAt: string | null;
  /** Last command or ping. */
  lastActiveAt: string | null;
  /** Why it is in status `error`; null in every other status. */
  errorReason: string | null;
  /** Name of the host of a cluster that holds it. null: the service has one host, or none holds it. */
  host: string | null;
}

/** One point of a capsule's metrics; null: not known. */
export interface CapsuleMetric {
  /** Unix time in milliseconds. */
  at: number;
  /** Percent of one CPU; 200: two are busy. */
  cpuPct: number;
  vcpus: number;
  /** MiB, without cache that can be dropped. */
  memoryUsedMb: number | null;
  memoryTotalMb: number | null;
  /** MiB, of the root file system. */
  diskUsedMb: number | null;
  diskTotalMb: number | null;
}

/** One point of a team's metrics. */
export interface TeamMetric {
  /** Unix time in milliseconds. */
  at: number;
  /** Capsules in this status; with `step` 300 the mean. */
  running: number;
  paused: number;
  /** Since the point before. */
  creates: number;
  /** Median of the creates' times to `running`; null: none got there. */
  createMsP50: number | null;
  createMsP95: number | null;
  /** Requests that were refused for a quota, capacity or space, since the point before. */
  refused: number;
}

export interface TemplateInfo {
  name: string;
  /** `base`: comes with the service; `snapshot`: captured from a capsule. */
  type: "base" | "snapshot";
  vcpus: number | null;
  /** MiB. */
  memoryMb: number | null;
  /** Size of its files on the service's disk. */
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
  /** The link's text. */
  symlinkTarget: string | null;
}

export interface ProcessInfo {
  pid: number;
  /** Empty for processes that init or the template started. */
  tag: string;
  cmd: string;
  args: string[];
  /**
   * Its effective user's name, or a decimal uid. This, `startedAt` and `kind` are missing from a capsule that was saved by an earlier
   * release of the service.
   */
  user?: string;
  /** Unix time in milliseconds, by the service's clock. */
  startedAt?: number;
  /** Started by exec, as a terminal, or not by the API itself: children are `other`. */
  kind?: "exec" | "pty" | "other";
}

/** The network of a capsule, and what became of it. */
export interface NetworkState extends NetworkInfo {
  /** The rules that hold, by those of the operator too. */
  effective: { egress: Egress; allow: string[]; deny: string[] };
  counters: {
    connectionsOpen: number;
    connectionsTotal: number;
    deniedTotal: number;
    bytesOut: number;
    bytesIn: number;
  };
  /** Connections of the capsule, newest last. */
  recent: {
    at: string;
    verdict: "allowed" | "denied" | "failed";
    reason: string;
    host?: string;
    address?: string;
    port?: number;
    count: number;
  }[];
  /** The capsule has no way out, whatever its policy. */
  unsupported: boolean;
}

/** A link to a port. */
export interface PortUrl {
  /** With the token in it: opens the port in a browser. */
  url: string;
  /** For the header `X-Capsule-Token`. */
  token: string;
  expiresAt: string;
}

/** A TCP socket on which a server in the capsule listens. */
export interface PortInfo {
  port: number;
  /** An IPv4 or IPv6 address of the capsule; `0.0.0.0` and `::` are all. */
  address: string;
  /** null: the process was not found. */
  pid: number | null;
  /** First word of the process's command line; empty where `pid` is null. */
  cmd: string;
  /** Whether `url` asks for no key. */
  public: boolean;
  /** For HTTP; `connect` reaches any server. */
  url: string;
}

export interface KeyInfo {
  /** `key-…`; identifies the key, gives no access. */
  id: string;
  name: string;
  /** Its first characters. */
  prefix: string | null;
  createdAt: string;
  lastUsedAt: string | null;
  /** null: never. */
  expiresAt: string | null;
  /** This client uses this key. */
  current: boolean;
  /**
   * Id of the key that made it; it ends with that one at the latest. null: the operator made it. Missing in the answers of
   * earlier releases.
   */
  madeBy?: string | null;
}

/** `key` is in this answer only. */
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
  /** Signs in to the dashboard once; expires after minutes. */
  url: string;
  expiresAt: string;
}

/** All but `ready` is there with a key, and on the service's own machine. */
export interface HealthInfo {
  /** Whether the service's machine can make a capsule. */
  ready: boolean;
  creates?: boolean;
  /** Why it can make none. */
  reasons?: string[];
  version?: string;
  /** `kvm`: hardware virtualization; `tcg`: software emulation, slower. */
  accelerator?: string;
  acceleratorReason?: string;
  /** Capsules of all teams, by status. */
  capsules?: Record<string, number>;
}

/** The service's limits. The service may report more than these. */
export interface LimitInfo {
  /** Virtual CPUs of one capsule. */
  vcpusMax: number;
  /** MiB. */
  memoryMinMb: number;
  memoryMaxMb: number;
  /** The largest disk that a create may ask for. */
  diskMaxMb: number;
  /** Longest inactivity time, seconds. */
  timeoutMaxSec: number;
  /** Longest lifetime and retention, seconds. */
  lifetimeMaxSec: number;
  retentionMaxSec: number;
  /** Inactivity time, lifetime and retention of a capsule whose create names none, seconds; 0: none. */
  timeoutDefaultSec: number;
  lifetimeDefaultSec: number;
  retentionDefaultSec: number;
  /** Capsules of one team. */
  capsulesMax: number;
  execTimeoutDefaultSec: number;
  execTimeoutMaxSec: number;
  /** Output kept per stream of an `exec`. */
  execOutputMaxBytes: number;
  listEntriesMax: number;
  listDepthMax: number;
  pathMaxBytes: number;
  [more: string]: unknown;
}

export type ServiceEvent =
  /** Earlier changes are unknown: list again. Later ones follow as events. */
  | { type: "reset"; reason: "new" | "missed" }
  | { type: "capsule"; capsule: CapsuleInfo }
  | { type: "capsule-removed"; id: string }
  | { type: "template"; template: TemplateInfo }
  | { type: "template-removed"; name: string };
