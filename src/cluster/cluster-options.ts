/** The parts and bounds of which a host's part in its cluster is made, and what it reports of itself. */
import type { Clock } from "../capsules/clock.ts";
import type { CapsuleStore } from "../capsules/store.ts";
import type { AuditRows } from "../db/audit-rows.ts";
import type { CatalogRows } from "../db/catalog-rows.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import type { Artifacts } from "./artifacts.ts";
import type { Freshness } from "./catalog.ts";
import type { ClusterStep } from "./copies.ts";
import type { HostRow, Me, MembershipOptions } from "./membership.ts";
import type { Room } from "./placement.ts";
import type { Postgres } from "./postgres.ts";

export interface ClusterOptions {
  sql: Postgres;
  me: Me;
  store: CapsuleStore;
  rows: { audit: AuditRows; catalog: CatalogRows; holding: HoldingRows; templates: TemplateRows };
  clock: Clock;
  log: Log;
  /** How long a revoked key, and an entry of the audit log, are kept. */
  revokedKeepMs: number;
  auditKeepMs: number;
  /** The largest shape of a capsule on this host. */
  largest?: Pick<Room, "vcpus_max" | "memory_max_mb">;
  /** The cluster's limits were read: some of them may have changed. */
  onLimits?: (limits: Readonly<Record<string, unknown>>) => void;
  /** The other hosts as the folder knows them, and what keeps them there. */
  lastHeard?: MembershipOptions["lastHeard"];
  onHosts?: (others: readonly HostRow[]) => void;
  /** How long a resume of a held capsule waits for its decision; default 250 ms. */
  resumeMs?: number;
  /** How long a request waits for a capsule that is leaving this host; default 2 s. */
  leavingMs?: number;
  /** After how long a silent host is lost; 0, the default: never. */
  hostLostSec?: number;
  step?: ClusterStep;
  /** Undefined: the cluster has no bucket. */
  artifacts?: Artifacts | undefined;
  /** Default: it is not kept. */
  freshness?: Freshness;
  /** Another daemon has this host's name: this one has to end. Its VMs run on. */
  onRefused: (reason: string) => void;
}

export interface ClusterReport {
  isDatabaseUp: boolean;
  /** Age of the oldest change that PostgreSQL does not show yet. */
  copyLagSec: number;
  /** Capsules and templates about which this host and the cluster disagree. */
  contradictions: number;
  /** By their outcome. */
  acquires: Readonly<Record<string, number>>;
  /** Statements to the database, by their outcome. */
  statements: Readonly<Record<string, number>>;
  /** The database may have forgotten what it had committed. */
  isPutBack: boolean;
}
