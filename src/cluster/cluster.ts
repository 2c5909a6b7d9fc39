/**
 * This host's part in its cluster: it has joined, follows the others, decides in PostgreSQL who holds a capsule, and tells there what
 * becomes of those that are here. Nothing of it is loaded by a host alone.
 */
import type { Clock } from "../capsules/clock.ts";
import type { CapsuleStore } from "../capsules/store.ts";
import type { AuditRows } from "../db/audit-rows.ts";
import type { CatalogRows } from "../db/catalog-rows.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import { Acquiring } from "./acquiring.ts";
import type { Artifacts } from "./artifacts.ts";
import { Asserting } from "./asserting.ts";
import { AuditShipping } from "./audit-shipping.ts";
import { Catalog, type Freshness } from "./catalog.ts";
import { type ClusterStep, Copies } from "./copies.ts";
import { DecidedByDatabase, putBackReason } from "./decided.ts";
import { Draining } from "./draining.ts";
import { Leaving } from "./leaving.ts";
import { Listing } from "./listing.ts";
import { Locations } from "./locations.ts";
import { LostHosts } from "./lost-hosts.ts";
import { type Beat, type HostRow, type Me, Membership, type MembershipOptions } from "./membership.ts";
import { NewKeys } from "./new-keys.ts";
import { Placement, type Room } from "./placement.ts";
import type { Postgres } from "./postgres.ts";
import { ReleasedByDatabase } from "./released-capsules.ts";
import type { Releases } from "./releases.ts";
import type { ClusterService } from "./service-parts.ts";
import { Settling } from "./settling.ts";
import { TeamChanges } from "./team-changes.ts";
import { TemplateFiles } from "./template-files.ts";
import { TemplatePlaces } from "./template-places.ts";

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
  /** The database may have forgotten what it had committed. */
  isPutBack: boolean;
}

const settleMs = 60_000;
const tombstonesKeepMs = 30 * 86_400_000;

export class Cluster {
  readonly sql: Postgres;
  readonly membership: Membership;
  readonly decided: DecidedByDatabase;
  readonly copies: Copies;
  readonly acquiring: Acquiring;
  readonly released: ReleasedByDatabase;
  readonly locations: Locations;
  readonly placement: Placement;
  /** Undefined: the cluster has no bucket. */
  readonly artifacts: Artifacts | undefined;
  readonly templateFiles: TemplateFiles | undefined;
  readonly audit: AuditShipping;
  readonly changes: TeamChanges;
  readonly newKeys: NewKeys;
  readonly lost: LostHosts;
  readonly leaving: Leaving;
  /** Undefined: the cluster has no bucket. */
  releases: Pick<Releases, "start" | "stop"> | undefined;
  readonly #options: ClusterOptions;
  readonly #places: TemplatePlaces;
  readonly #asserting: Asserting;
  #parts: { listing: Listing; catalog: Catalog; settling: Settling; room: ClusterService["room"] } | undefined;
  #draining: Draining | undefined;
  #doubts: string[] = [];
  #settledAt = Number.NEGATIVE_INFINITY;
  #afterBeat: Promise<void> | undefined;
  /** A host that is asked takes its time. */
  #judging: Promise<void> | undefined;
  /** Teams and keys wait for nothing else. */
  #following: Promise<void> | undefined;
  #allRead = () => {};
  #hasGoneOn = false;
  #hasRecovered = false;

  constructor(options: ClusterOptions) {
    const { sql, me, store, clock, log, rows, onRefused, artifacts } = options;
    this.#options = options;
    this.sql = sql;
    this.membership = new Membership({
      ...{ sql, me, clock, log, onRefused, lastHeard: options.lastHeard },
      load: () => ({ memory_mb: store.runningMemoryMb(), ...this.#room() }),
      onSend: () => {
        this.#allRead = this.newKeys.beginReading();
      },
      onBeat: (beat) => this.#onBeat(beat),
    });
    this.changes = new TeamChanges({ sql, log });
    const onCopied = () => this.changes.soon();
    this.copies = new Copies({ sql, store, holding: rows.holding, host: me, clock, log, onCopied, step: options.step });
    this.leaving = new Leaving({
      ...{ sql, me, store, holding: rows.holding, copies: this.copies, log, step: options.step },
      onDoubt: (id) => this.#doubt(id),
    });
    this.decided = new DecidedByDatabase({
      ...{ sql, me, membership: this.membership, copies: this.copies, holding: rows.holding, clock },
      onDoubt: (id) => this.#doubt(id),
      ...{ resumeMs: options.resumeMs, step: options.step, artifacts },
    });
    this.acquiring = new Acquiring({
      ...{ sql, me, store, log, holding: rows.holding, copies: this.copies, decided: this.decided },
      ...{ step: options.step, onDoubt: (id) => this.#doubt(id) },
    });
    this.released = new ReleasedByDatabase({ sql, store, membership: this.membership, acquiring: this.acquiring });
    this.locations = new Locations({
      ...{ sql, membership: this.membership, store, leavingMs: options.leavingMs },
      coming: (...of) => this.acquiring.coming(...of),
      onDoubt: (id) => this.#doubt(id),
    });
    this.#places = new TemplatePlaces({ sql, host: me.name, own: rows.templates });
    const [places, fetches] = [this.#places, artifacts !== undefined];
    this.artifacts = artifacts;
    this.templateFiles = artifacts && new TemplateFiles({ artifacts, places, rows: rows.templates });
    this.placement = new Placement({
      membership: this.membership,
      templates: places,
      room: () => this.#room(),
      fetches,
    });
    this.audit = new AuditShipping({ sql, host: me.name, rows: rows.audit, log });
    this.#asserting = new Asserting({ sql, me, store, rows, cluster: this, clock, log });
    this.newKeys = new NewKeys({ sql, rows: rows.catalog, catalog: () => this.catalog, ticks: () => clock.ticks() });
    this.lost = new LostHosts({ sql, membership: this.membership, clock, log, lostSec: options.hostLostSec ?? 0 });
  }

  get step(): ClusterStep | undefined {
    return this.#options.step;
  }

  get host(): string {
    return this.#options.me.name;
  }

  get listing(): Listing {
    return this.#joined.listing;
  }

  get catalog(): Catalog {
    return this.#joined.catalog;
  }

  /** Why no capsule can be made by this host now. */
  reasons(): string[] {
    const { isExpired, isPutBack } = this.membership;
    return [...(isExpired ? ["the cluster's database is away"] : []), ...(isPutBack ? [putBackReason] : [])];
  }

  /** For the metrics of this host. */
  report(): ClusterReport {
    return {
      isDatabaseUp: !this.membership.isExpired,
      copyLagSec: this.copies.lagMs / 1_000,
      contradictions: this.#parts?.settling.contradictions ?? 0,
      acquires: this.acquiring.counts,
      isPutBack: this.membership.isPutBack,
    };
  }

  /** Before the service recovers: every change of a row from here on is copied. Resolves with teams and keys read, if it can. */
  async start(service: ClusterService): Promise<void> {
    const { sql, me, store, clock, log, rows, revokedKeepMs } = this.#options;
    const { decisions, captures, end, stop, rename, viewOf, onTeamDeleted, onRetired, onKeys, room, files } = service;
    if (files !== undefined) this.acquiring.open(files);
    const settling = new Settling({
      ...{ sql, me, store, decisions, captures, end, stop, rename, log, decided: this.decided, copies: this.copies },
      ...{ acquiring: this.acquiring, holding: rows.holding },
      templates: rows.templates,
    });
    this.leaving.open(service);
    for (const id of this.#doubts) settling.doubt(id);
    this.#parts = {
      ...{ settling, room },
      listing: new Listing({ sql, host: me.name, store, viewOfOwn: viewOf }),
      catalog: new Catalog({
        ...{ sql, host: me.name, rows: rows.catalog, clock, log },
        ...{ onTeamDeleted, onRetired, onKeys, places: this.#places, revokedKeepMs, templates: rows.templates },
        freshness: this.#options.freshness ?? { ageMs: () => Number.POSITIVE_INFINITY, note() {} },
        onLimits: (limits) => this.#options.onLimits?.(limits),
      }),
    };
    this.#draining = new Draining({ sql, membership: this.membership, log, keepReady: service.keepReady });
    this.copies.follow();
    await this.membership.start();
    await Promise.all([this.#following, this.#afterBeat, this.#judging]);
  }

  /** The service has recovered: its rows are compared with the cluster's from now on. */
  recovered(): void {
    this.#hasRecovered = true;
    this.releases?.start();
  }

  /** All changes are copied first, if the database answers. */
  async stop(): Promise<void> {
    this.#parts?.catalog.stop();
    this.changes.close();
    await this.releases?.stop();
    await this.membership.stop();
    const ended = [this.acquiring.ended(), this.artifacts?.close()];
    await Promise.all([this.#following, this.#afterBeat, this.#judging, ...ended]);
    await Promise.all([this.copies.stop(), this.audit.try()]);
    await this.sql.close();
  }

  /** Resolves when what the last heartbeat has begun is done. */
  async settled(): Promise<void> {
    await this.membership.settled();
    await Promise.all([this.#following, this.#afterBeat, this.#judging]);
  }

  get #joined() {
    if (this.#parts === undefined) throw new Error("the cluster was not started");
    return this.#parts;
  }

  #room(): Room {
    const any = Number.MAX_SAFE_INTEGER;
    const { vcpus_max = any, memory_max_mb = any } = this.#options.largest ?? {};
    return { ...this.#joined.room(), fetches: this.artifacts !== undefined, vcpus_max, memory_max_mb };
  }

  #doubt(id: string): void {
    if (this.#parts === undefined) this.#doubts.push(id);
    else this.#parts.settling.doubt(id);
  }

  #onBeat(beat: Beat): void {
    const { me, onHosts } = this.#options;
    onHosts?.(this.membership.hosts().filter(({ name, state }) => name !== me.name && state !== "gone"));
    this.#following ??= this.#readCatalog(beat)
      .catch((error: unknown) => this.#options.log.error({ err: error }, "teams and keys could not be followed"))
      .finally(() => {
        this.#following = undefined;
      });
    this.#afterBeat ??= this.#follow(beat).finally(() => {
      this.#afterBeat = undefined;
    });
    this.#judging ??= this.lost.judge().finally(() => {
      this.#judging = undefined;
    });
  }

  async #readCatalog({ catalog, place }: Beat): Promise<void> {
    const allRead = this.#allRead; // what was vouched for later may not be in the heartbeat's number
    if (await this.#joined.catalog.follow(catalog, place)) allRead();
  }

  async #follow({ isBack, place = "" }: Beat): Promise<void> {
    const [{ clock }, { settling }] = [this.#options, this.#joined];
    if (isBack || !this.#hasGoneOn) await this.#goOn();
    await this.#draining?.follow();
    if (!this.#hasRecovered) return;
    if (this.membership.isPutBack) return await this.#asserting.assert(place);
    if (this.leaving.hasAny) await this.leaving.settle();
    const isDue = isBack || clock.ticks() - this.#settledAt >= settleMs;
    if (isDue) {
      this.#settledAt = clock.ticks();
      await settling.settle("all");
      await this.#forget();
    } else if (settling.hasDoubts) await settling.settle("doubts");
    await this.audit.try();
  }

  /** After a start or an outage every row is copied once: the numbers go on above those that the database has. */
  async #goOn(): Promise<void> {
    const { sql, log } = this.#options;
    try {
      if (!this.#hasGoneOn) {
        await this.copies.goOn();
        this.#hasGoneOn = true;
      }
      this.copies.markAll();
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "status copies could not be begun");
    }
  }

  async #forget(): Promise<void> {
    const { sql, auditKeepMs, log } = this.#options;
    try {
      await sql.call("forget", [tombstonesKeepMs, auditKeepMs], { what: "forget old entries" });
      if (this.artifacts !== undefined) await sql.call("forget_artifacts", [], { what: "forget old entries" });
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "old entries of the cluster could not be removed");
    }
  }
}
