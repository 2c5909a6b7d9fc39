/** A host of a schedule: a machine with its folder, and the daemon that runs on it or not. */
import { Cluster } from "../../../src/cluster/cluster.ts";
import type { DecidedByDatabase } from "../../../src/cluster/decided.ts";
import { Membership } from "../../../src/cluster/membership.ts";
import { PeerPlaces } from "../../../src/cluster/peer-places.ts";
import { Postgres } from "../../../src/cluster/postgres.ts";
import { Releases } from "../../../src/cluster/releases.ts";
import { Upkeep } from "../../../src/cluster/upkeep.ts";
import { clusteredServices, startCluster } from "../../../src/clustered.ts";
import { CatalogRows } from "../../../src/db/catalog-rows.ts";
import type { Database } from "../../../src/db/database.ts";
import { HoldingRows } from "../../../src/db/holding-rows.ts";
import type { Services } from "../../../src/http/services.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import type { HostVerb } from "../../fakes/fake-host.ts";
import { type FakeService, fakeService } from "../../fakes/fake-service.ts";
import { scheduledPg } from "../../fakes/scheduled-pg.ts";
import { joining } from "../statements.ts";
import { SimulatedFiles, SimulatedUploads } from "./bucket.ts";
import type { Folder } from "./folders.ts";
import { Life } from "./life.ts";
import { SimulatedMachine } from "./machine.ts";
import { limits, team } from "./model.ts";
import { placed } from "./routes.ts";
import type { World } from "./world.ts";

export interface Daemon {
  life: Life;
  service: FakeService;
  services: Services;
  cluster: Cluster;
  places: PeerPlaces;
  /** Undefined: the cluster has no bucket. */
  upkeep: Upkeep | undefined;
  /** Last change that a stream of events at this host was told of each capsule; undefined: it is gone. */
  told: Map<string, string | undefined>;
  /** The team's version in the database by which the stream had begun. */
  followedFrom: number | undefined;
}

/** Rest of a paused capsule before its upload. */
const releaseAfterMs = 20;
/** Folders that were set aside which a machine keeps. */
const cachedMax = 2;

interface Parts {
  sql: Postgres;
  holding: HoldingRows;
  service: FakeService;
  cluster: Cluster;
}

const failing: HostVerb[] = ["start", "restore", "boot", "save", "unsave", "capture", "release"];
const silent = { info() {}, warn() {}, error() {} };

export class SimulatedHost {
  readonly name: string;
  readonly machine = new SimulatedMachine();
  readonly database: Database;
  readonly #folder: Folder;
  readonly #world: World;
  /** The number of the last join, as host.json has it. */
  #epoch = 0;
  #lives = 0;
  /** The daemon's life; its `daemon` is there once it listens. */
  life: Life | undefined;
  daemon: Daemon | undefined;
  /** It could not join, or was refused in a heartbeat. */
  mustEnd = false;
  /** Other hosts reach it. */
  isReachable = true;

  constructor(world: World, name: string, folder: Folder) {
    this.#world = world;
    this.name = name;
    this.#folder = folder;
    this.database = folder.database;
    folder.unsynced.isFollowing = world.bucket.isThere;
    const { scheduler } = world;
    this.machine.moment = () => scheduler.turn("a moment of the host");
    this.machine.before = (verb, id) => {
      if (!failing.includes(verb) || !scheduler.chance(world.faults.host)) return;
      if (verb === "unsave" || verb === "release") this.loseGuest(id, verb);
      scheduler.note(`  ${verb} fails`);
      throw new CapsuleError("agent_error", `${verb} failed`);
    };
  }

  loseGuest(id: string, reason: string): void {
    this.#world.model.lost(id);
    this.machine.guests.get(id)?.endWith({ kind: "lost", reason });
  }

  /** Begins a life of the daemon, which listens some steps later. */
  start(): void {
    const { scheduler, seedOfLife } = this.#world;
    this.#lives += 1;
    this.mustEnd = false;
    const life = new Life(this.name, this.#lives, seedOfLife());
    this.life = life;
    scheduler.note(`${life.name} starts`);
    life.run(() => this.#begin(life)).catch((error: unknown) => this.#world.broken(error));
  }

  /** The daemon dies; its VMs run on. */
  kill(): void {
    const { life } = this;
    if (life === undefined) return;
    this.#world.scheduler.note(`${life.name} dies`);
    this.#world.scheduler.drop(life);
    this.#world.onDeath(life);
    this.machine.forgetWaiting();
    this.life = undefined;
    this.daemon = undefined;
  }

  /** The machine dies, with daemon and VMs. */
  cutPower(): void {
    this.kill();
    for (const id of this.machine.guests.keys()) this.#world.model.lost(id);
    this.machine.guests.clear();
    const { unsynced } = this.#folder;
    if (!this.#world.bucket.isThere || !unsynced.hasAny || this.#world.scheduler.chance(0.3)) return;
    this.#world.scheduler.note("  what was not synced is gone");
    unsynced.drop();
    this.#world.checks.hasLostRows(this);
  }

  /** Another folder's daemon says that it is this host, of this epoch: no heartbeat of it is answered. */
  impersonate(): void {
    const { scheduler, violated, broken } = this.#world;
    const life = new Life(`${this.name}?`, 0, this.#world.seedOfLife());
    const membership = new Membership({
      ...{ sql: openSql(this.#world, life), clock: life, log: silent, load: () => ({}) },
      me: { name: this.name, epoch: this.#epoch, nonce: "another" },
      onBeat: () => violated(`I14: another folder's daemon is ${this.name}`),
      onRefused: () => scheduler.drop(life),
    });
    life.run(() => membership.start()).catch(broken);
  }

  async #begin(life: Life): Promise<void> {
    const { mutant } = this.#world;
    const sql = openSql(this.#world, life);
    if (!(await this.#join(sql))) {
      this.mustEnd = true;
      return;
    }
    const { name, database, machine } = this;
    const { isThere: hasBucket } = this.#world.bucket;
    const holding = new HoldingRows(database);
    const mark = holding.setMoving.bind(holding);
    holding.setMoving = (id, isMoving) => {
      if (!isMoving) this.#world.model.leftPaused.add(id);
      mark(id, isMoving);
    };
    const files = hasBucket ? new SimulatedFiles(this.#world, machine) : undefined;
    let joined: Cluster | undefined;
    const service = fakeService({
      ...{ database, host: machine, clock: life, quotas: limits },
      ownershipOf: ({ store, templateRows, auditRows }) => {
        joined = new Cluster({
          ...{ sql, store, clock: life, log: silent, revokedKeepMs: 1e12, auditKeepMs: 1e12 },
          me: { name, epoch: this.#epoch, nonce: `nonce-${name}` },
          rows: {
            ...{ audit: auditRows, catalog: new CatalogRows(database), templates: templateRows },
            holding,
          },
          onRefused: () => {
            this.mustEnd = true;
          },
        });
        followAdmissions(joined.decided, (id) => this.#world.model.unadmitted.add(id));
        return joined.decided;
      },
    });
    const cluster = joined!;
    mutant?.plant?.(cluster, { store: service.store, holding, database, files });
    const upkeep = files && this.#upkeep(life, { sql, holding, files, service, cluster });
    await startCluster(cluster, service, { folders: machine.moved, files });
    if (hasBucket) this.#release(life, { sql, holding, service, cluster });
    await service.recover();
    cluster.recovered();
    const services = clusteredServices({ service, cluster, health: service.health, keysStaleMs: 900_000 });
    const places = new PeerPlaces(cluster.locations, service.store, (...of) => cluster.acquiring.coming(...of));
    const daemon = { life, service, services, cluster, places, upkeep, told: new Map(), followedFrom: undefined };
    cluster.placeBy((capsule) => placed(this.#world, daemon, capsule, "move"));
    this.daemon = daemon;
    this.#world.scheduler.note(`${life.name} listens`);
    if (!hasBucket) await this.#follow(this.daemon);
  }

  /** As join does it: before the daemon's first upload is noted. */
  #upkeep(life: Life, { sql, holding, files, service, cluster }: Parts & { files: SimulatedFiles }): Upkeep {
    const { machine, name: host } = this;
    const held = service.store.all().map(({ id }) => ({ id, epoch: holding.epoch(id) }));
    machine.repair(held.map((each) => ({ ...each, isReleasing: holding.releasing(each.id) !== null })));
    return new Upkeep({
      ...{ sql, host, bucket: this.#world.bucket.listed, holding, folders: files, store: service.store },
      ...{ cacheBytes: cachedMax * 1_000, clock: life, log: silent, onEnded() {} },
      isPutBack: () => cluster.membership.isPutBack,
    });
  }

  #release(life: Life, { sql, holding, service, cluster }: Parts): void {
    const { leaving, membership } = cluster;
    cluster.releases = new Releases({
      ...{ store: service.store, holding, leaving, sql, clock: life, log: silent, afterMs: releaseAfterMs },
      uploads: new SimulatedUploads(this.#world, this.machine),
      isAway: () => sql.isAway || membership.isExpired || membership.isPutBack,
    });
  }

  /** As joinCluster: a host that has joined before starts without the database, too. False: the daemon ends. */
  async #join(sql: Postgres): Promise<boolean> {
    const about = { what: "join the cluster" };
    try {
      await sql.query("SELECT limits FROM cluster", [], about);
    } catch {
      return this.#epoch > 0;
    }
    try {
      this.#epoch = await sql.call<number>("join_host", joining(this.name, { known: this.#epoch }), about);
      return true;
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "unavailable") return false;
      throw error;
    }
  }

  /** A stream of the team's events. */
  async #follow(daemon: Daemon): Promise<void> {
    const { changes } = daemon.cluster;
    changes.onChange((_team, _id, change) => {
      if (change.kind === "capsule") daemon.told.set(change.view.id, change.view.status);
      if (change.kind === "capsule-removed") daemon.told.set(change.id, undefined);
    });
    for (;;) {
      try {
        await changes.open(team, undefined, () => {});
        daemon.followedFrom = Number.POSITIVE_INFINITY; // until the next look at the database
        return;
      } catch (error) {
        if (!(error instanceof CapsuleError) || error.code !== "unavailable") throw error;
      }
    }
  }
}

/** The database, for code of that life. */
export function openSql({ statements }: World, life: Life): Postgres {
  const Opened = Postgres as unknown as new (...of: unknown[]) => Postgres; // without the package's own connections
  return new Opened(scheduledPg(statements.port()), { url: "", ticks: () => life.ticks() });
}

/** `onAsked`: a resume begins whose admission is not known, and may never be: without a connection no statement is sent. */
function followAdmissions(decided: DecidedByDatabase, onAsked: (id: string) => void): void {
  const admitted = new Set<string>(); // by their acquires
  const { admitResume, admitted: admit } = decided;
  decided.admitted = (id, free) => {
    admit.call(decided, id, () => {
      admitted.delete(id);
      free();
    });
    admitted.add(id);
  };
  decided.admitResume = (row) => {
    if (!admitted.has(row.id)) onAsked(row.id);
    return admitResume.call(decided, row);
  };
}
