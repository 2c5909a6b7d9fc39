/**
 * This host's part in its cluster: it has joined, follows the others, decides in PostgreSQL who holds a capsule, and tells there what
 * becomes of those that are here. Nothing of it is loaded by a host alone.
 */
import { Acquiring } from "./acquiring.ts";
import { Arrived } from "./arrived.ts";
import type { Artifacts } from "./artifacts.ts";
import { Asserting } from "./asserting.ts";
import { AuditShipping } from "./audit-shipping.ts";
import { Catalog } from "./catalog.ts";
import type { ClusterOptions, ClusterReport } from "./cluster-options.ts";
import { type ClusterStep, Copies } from "./copies.ts";
import { DecidedByDatabase, putBackReason } from "./decided.ts";
import { Draining } from "./draining.ts";
import { Gathering } from "./gathering.ts";
import { Leaving } from "./leaving.ts";
import { Listing } from "./listing.ts";
import { Locations } from "./locations.ts";
import { LostHosts } from "./lost-hosts.ts";
import { Membership } from "./membership.ts";
import { Moves, type MovesOptions } from "./moves.ts";
import { NewKeys } from "./new-keys.ts";
import { OwnMachine } from "./own-machine.ts";
import { Placement, type Room } from "./placement.ts";
import type { Postgres } from "./postgres.ts";
import { ReleasedByDatabase } from "./released-capsules.ts";
import type { Releases } from "./releases.ts";
import { Rounds } from "./rounds.ts";
import { RowWaits } from "./row-waits.ts";
import type { ClusterService } from "./service-parts.ts";
import { Settling } from "./settling.ts";
import { TeamChanges } from "./team-changes.ts";
import { TemplateFiles } from "./template-files.ts";
import { TemplatePlaces } from "./template-places.ts";

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
  readonly gathering: Gathering;
  /** Undefined: the cluster has no bucket. */
  releases: Pick<Releases, "start" | "stop" | "hasten" | "failureOf" | "stayOf" | "look"> | undefined;
  readonly #options: ClusterOptions;
  readonly #places: TemplatePlaces;
  #parts:
    | { listing: Listing; catalog: Catalog; settling: Settling; rounds: Rounds; room: ClusterService["room"] }
    | undefined;
  #moving: { arrived: Arrived; moves: Moves } | undefined;
  #place: MovesOptions["place"] = async () => {
    throw new Error("no host can be asked yet");
  };
  #doubts: string[] = [];

  constructor(options: ClusterOptions) {
    const { sql, me, store, clock, log, rows, onRefused, artifacts } = options;
    this.#options = options;
    this.sql = sql;
    this.membership = new Membership({
      ...{ sql, me, clock, log, onRefused, lastHeard: options.lastHeard },
      load: () => ({ memory_mb: store.runningMemoryMb(), ...this.#room() }),
      onSend: () => this.#parts?.rounds.sending(),
      onBeat: (beat) => this.#joined.rounds.begin(beat),
    });
    this.changes = new TeamChanges({ sql, log });
    const onCopied = () => this.changes.soon();
    this.copies = new Copies({ sql, store, holding: rows.holding, host: me, clock, log, onCopied, step: options.step });
    this.leaving = new Leaving({
      ...{ sql, me, store, holding: rows.holding, copies: this.copies, clock, log, step: options.step },
      onDoubt: (id) => this.#doubt(id),
    });
    this.decided = new DecidedByDatabase({
      ...{ sql, me, membership: this.membership, copies: this.copies, holding: rows.holding, clock },
      onDoubt: (id) => this.#doubt(id),
      ...{ resumeMs: options.resumeMs, step: options.step, artifacts },
    });
    this.acquiring = new Acquiring({
      ...{ sql, me, store, log, holding: rows.holding, copies: this.copies, decided: this.decided },
      ...{ clock, step: options.step, onDoubt: (id) => this.#doubt(id) },
      onMoved: (id, isAwaited) => this.#moving?.arrived.take(id, isAwaited),
    });
    const rowOf = (teamId: string, id: string) => this.locations.row(teamId, id);
    this.released = new ReleasedByDatabase({
      ...{ sql, store, membership: this.membership, acquiring: this.acquiring, decided: this.decided },
      waits: new RowWaits({ changes: this.changes, rowOf }),
    });
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
    this.newKeys = new NewKeys({ sql, rows: rows.catalog, catalog: () => this.catalog, ticks: () => clock.ticks() });
    this.gathering = new Gathering({
      sql,
      acquiring: this.acquiring,
      artifacts,
      templates: rows.templates,
      clock,
      log,
    });
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
      statements: this.sql.outcomes,
      isPutBack: this.membership.isPutBack,
    };
  }

  /** Before the service recovers: every change of a row from here on is copied. Resolves with teams and keys read, if it can. */
  async start(service: ClusterService): Promise<void> {
    const { sql, me, store, clock, log, rows, revokedKeepMs, auditKeepMs, onHosts } = this.#options;
    const { decisions, captures, end, stop, rename, viewOf, onTeamDeleted, onRetired, onKeys, room, files } = service;
    if (files !== undefined) this.acquiring.open(files);
    const settling = new Settling({
      ...{ sql, me, store, decisions, captures, end, stop, rename, log, decided: this.decided, copies: this.copies },
      ...{ acquiring: this.acquiring, holding: rows.holding },
      templates: rows.templates,
    });
    this.leaving.open(service);
    for (const id of this.#doubts) settling.doubt(id);
    const catalog = new Catalog({
      ...{ sql, host: me.name, rows: rows.catalog, clock, log },
      ...{ onTeamDeleted, onRetired, onKeys, places: this.#places, revokedKeepMs, templates: rows.templates },
      freshness: this.#options.freshness ?? { ageMs: () => Number.POSITIVE_INFINITY, note() {} },
      onLimits: (limits) => this.#options.onLimits?.(limits),
    });
    const draining = new Draining({ sql, membership: this.membership, clock, log, keepReady: service.keepReady });
    this.#moving = this.#movesOf(service);
    const { moves } = this.#moving;
    const machine = new OwnMachine({ sql, me, log, machine: service.machine });
    const asserting = new Asserting({ sql, me, store, rows, cluster: this, clock, log });
    const rounds = new Rounds({
      ...{ sql, me, clock, log, auditKeepMs, onHosts, catalog, settling, draining, moves, asserting, machine },
      ...{ membership: this.membership, copies: this.copies, leaving: this.leaving, lost: this.lost },
      gathering: this.gathering,
      ...{ newKeys: this.newKeys, audit: this.audit, hasBucket: this.artifacts !== undefined },
    });
    const listing = new Listing({ sql, host: me.name, store, viewOfOwn: viewOf });
    this.#parts = { listing, catalog, settling, rounds, room };
    this.copies.follow();
    await this.membership.start();
    await rounds.done();
  }

  /** The service has recovered: its rows are compared with the cluster's from now on. */
  recovered(): void {
    this.#joined.rounds.recovered();
    this.releases?.start();
  }

  /** All changes are copied first, if the database answers. */
  async stop(): Promise<void> {
    this.#parts?.catalog.stop();
    this.changes.close();
    await this.#moving?.moves.stop();
    this.gathering.stop();
    await this.releases?.stop();
    await this.membership.stop();
    await Promise.all([
      this.#parts?.rounds.done(),
      this.acquiring.ended(),
      this.artifacts?.close(),
      this.gathering.ended(),
    ]);
    await Promise.all([this.copies.stop(), this.audit.try()]);
    await this.sql.close();
  }

  /** Resolves when what the last heartbeat has begun is done. */
  async settled(): Promise<void> {
    await this.membership.settled();
    await this.#parts?.rounds.done();
  }

  /** `place`: as MovesOptions. */
  placeBy(place: MovesOptions["place"]): void {
    this.#place = place;
  }

  /** Resolves when no move of a capsule is under way. */
  async moved(): Promise<void> {
    await this.#moving?.moves.ended();
  }

  #movesOf({ moving: service }: ClusterService): { arrived: Arrived; moves: Moves } {
    const { sql, store, rows, clock, log } = this.#options;
    const arrived = new Arrived({
      ...{ store, holding: rows.holding, clock, log },
      resume: (row) => service.resume(row),
      onPaused: (id) => this.releases?.look(id),
    });
    const moves = new Moves({
      ...{ sql, membership: this.membership, store, holding: rows.holding, acquiring: this.acquiring },
      ...{ arrived, service, releases: () => this.releases, clock, log },
      place: (capsule) => this.#place(capsule),
    });
    return { arrived, moves };
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
}
