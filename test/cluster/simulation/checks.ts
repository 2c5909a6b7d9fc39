/** Invariants of a cluster, after each step and at a schedule's end. */
import type { StatementSync } from "node:sqlite";
import { HolderChecks, isChangeOfHolder } from "./holder-checks.ts";
import type { SimulatedHost } from "./host.ts";
import { limits, team } from "./model.ts";
import type { Statement } from "./statements.ts";
import { violated } from "./violation.ts";
import type { World } from "./world.ts";

export interface SharedCapsule {
  id: string;
  name: string | null;
  status: string;
  intent: string | null;
  revision: number;
  /** null: it was released. */
  host: string | null;
  epoch: number;
  checkpoint: string | null;
  copy: number;
  version: number;
  vcpus: number;
  moving: boolean | null;
}

interface Tombstone {
  id: string;
  version: number;
  host: string;
}

export interface Snapshot {
  capsules: Map<string, SharedCapsule>;
  tombstones: Map<string, Tombstone>;
  keys: { id: string; revoked_at: number | null }[];
  templates: { storage: string; name: string; made_on: string; retired_at: number | null }[];
  hosts: Map<string, number>;
  version: number;
  garbage: { prefix: string }[];
  /** False: it was put back, and may have forgotten anything. */
  isOwnPlace: boolean;
}

/** As the database gives it. */
interface Shared extends Omit<Snapshot, "capsules" | "tombstones" | "hosts"> {
  capsules: SharedCapsule[];
  tombstones: Tombstone[];
  hosts: { name: string; epoch: number }[];
}

const rowsOf = (columns: string, from: string) =>
  `(SELECT COALESCE(json_agg(each), '[]') FROM (SELECT ${columns} FROM ${from}) each)`;
const shared = "id, name, status, intent, revision, host, epoch, checkpoint, copy, version, vcpus, moving";
const everything = `SELECT ${rowsOf(shared, "capsules")} AS capsules,
  ${rowsOf("id, version, host", "tombstones")} AS tombstones, ${rowsOf("id, revoked_at", "keys")} AS keys,
  ${rowsOf("storage, name, made_on, retired_at", "templates")} AS templates, ${rowsOf("name, epoch", "hosts")} AS hosts,
  ${rowsOf("prefix", "garbage")} AS garbage, is_own_place() AS "isOwnPlace",
  (SELECT version FROM teams WHERE id = '${team}')::float8 AS version`;

export interface OwnRow {
  id: string;
  name: string | null;
  status: string;
  intent: string | null;
  vcpus: number;
  teamId: string;
  epoch: number;
  /** Not null: its release may be under way. */
  releasing: string | null;
  /** Not null: it is paused for a move, or has come here by one. */
  moving: number | null;
}

export class Checks {
  readonly #world: World;
  #now: Snapshot | undefined;
  /** Something was committed since the last look. */
  isDirty = true;
  /** The team may run one more capsule. */
  hasRoom = true;
  /** Looks at the database for what a client has just been told. */
  readonly #told: ((now: Snapshot) => void)[] = [];
  readonly #own = new Map<SimulatedHost, StatementSync>();
  readonly #holders: HolderChecks;

  constructor(world: World) {
    this.#world = world;
    this.#holders = new HolderChecks(world, (host) => this.rows(host));
  }

  get now(): Snapshot {
    return this.#now!;
  }

  /** Is looked at when this step is over. */
  holds(what: string, isTrue: (now: Snapshot) => boolean): void {
    this.#told.push((now) => {
      if (now.isOwnPlace && !isTrue(now)) violated(`I8: ${what}`);
    });
  }

  /** The database was put back: nothing that it has now follows from what it had, and it sums without what it has forgotten. */
  hasForgotten(): void {
    for (const host of this.#world.hosts) this.hasLostRows(host);
    this.#now = undefined;
    this.isDirty = true;
  }

  /** Rows of the host may show capsules as running that have ended, until its next daemon finds no VM of them. */
  hasLostRows(host: SimulatedHost): void {
    for (const { id } of this.rows(host).filter(isLive)) this.#world.model.unadmitted.add(id);
  }

  get isOwnPlace(): boolean {
    return this.#now?.isOwnPlace === true;
  }

  async afterStep(): Promise<void> {
    if (this.isDirty) await this.#look();
    for (const check of this.#told.splice(0)) check(this.now);
    for (const host of this.#world.hosts) this.#ofMachine(host);
    this.#holders.afterStep(this.now);
    this.#ofKeys();
    this.#quotas();
  }

  /** A create of an epoch that its host no longer has, and which has made nothing yet. */
  isOld({ call, life, values }: Statement): boolean {
    if (call !== "create_capsule" || this.#now === undefined) return false;
    const { hosts, capsules, tombstones } = this.#now;
    const { id } = JSON.parse(values[0] as string) as { id: string };
    return (values[2] as number) < (hosts.get(life.host) ?? 0) && !capsules.has(id) && !tombstones.has(id);
  }

  /** A statement of a daemon's earlier life decides nothing. */
  committed({ isOld, life }: Statement): void {
    if (isOld) violated(`I14: a daemon has made a capsule as an epoch of ${life.host} that is over`);
  }

  async #look(): Promise<void> {
    const [row] = await this.#world.database.ask<Shared>(everything);
    const { capsules, tombstones, hosts, ...rest } = row!;
    const before = this.#now;
    const now: Snapshot = {
      capsules: new Map(capsules.map((each) => [each.id, each])),
      tombstones: new Map(tombstones.map((each) => [each.id, each])),
      hosts: new Map(hosts.map(({ name, epoch }) => [name, epoch])),
      ...rest,
    };
    this.#now = now;
    this.isDirty = false;
    if (before !== undefined) this.#changed(before, now);
    for (const { daemon } of this.#world.hosts)
      if (daemon?.followedFrom === Number.POSITIVE_INFINITY) daemon.followedFrom = now.version;
  }

  #changed(before: Snapshot, now: Snapshot): void {
    this.#ordered(before, now);
    for (const id of before.tombstones.keys())
      if (now.capsules.has(id)) violated(`I9: ${id} was destroyed, and is there again`);
    if (!before.isOwnPlace) return; // hosts have told
    for (const [id, old] of before.capsules) {
      const row = now.capsules.get(id);
      if (row === undefined) {
        if (!now.tombstones.has(id)) violated(`I1: ${id} is gone without a tombstone`);
        continue;
      }
      if (!isChangeOfHolder(old, row)) violated(`I1: ${id} of ${old.host}.${old.epoch} is of ${row.host}.${row.epoch}`);
      // Each holder has numbers of its own.
      if ((row.epoch === old.epoch && row.copy < old.copy) || row.revision < old.revision)
        violated(`I11: ${id} had copy ${old.copy} of revision ${old.revision}, and has ${row.copy} of ${row.revision}`);
    }
    // A capsule whose destroy had no answer is there again in a database that was put back.
    if (now.capsules.size > Math.max(limits.capsules, before.capsules.size))
      violated(`I12: the team has ${now.capsules.size} capsules`);
  }

  /** A reader that has read up to a version reads what is above it: nothing changes with a version that could be read before. */
  #ordered(before: Snapshot, now: Snapshot): void {
    const changed = [...now.capsules.values()].filter(({ id, status, name, version }) => {
      const old = before.capsules.get(id);
      return old?.status !== status || old.name !== name || old.version !== version; // all else is shown to nobody
    });
    // A tombstone of a capsule that the database never knew is no team's.
    const gone = [...now.tombstones.values()].filter(({ id, version }) => version > 0 && !before.tombstones.has(id));
    for (const { id, version } of [...changed, ...gone])
      if (version <= before.version) violated(`${id} has changed with version ${version} after ${before.version}`);
  }

  /** Rows of the folder, whether a daemon runs or not. */
  rows(host: SimulatedHost): OwnRow[] {
    const text = "SELECT id, name, status, intent, vcpus, team_id AS teamId, epoch, releasing, moving FROM capsules";
    const statement = this.#own.get(host) ?? host.database.prepare(text);
    this.#own.set(host, statement);
    return statement.all() as unknown as OwnRow[];
  }

  #ofMachine(host: SimulatedHost): void {
    const { model } = this.#world;
    const ids = new Set(this.rows(host).map(({ id }) => id));
    for (const [id, guest] of host.machine.guests) {
      if (model.capsules.get(id)?.isEnded) violated(`I9: ${id} was destroyed, and has a VM on ${host.name}`);
      const runs = !guest.isHeld && !guest.isStopped;
      if (runs && !ids.has(id)) violated(`I2: ${id} runs on ${host.name}, which has no row of it`);
    }
  }

  /** The host that has revoked a key refuses it from then on. */
  #ofKeys(): void {
    const { hosts, model } = this.#world;
    for (const { id, text, endedAt } of model.keys.values()) {
      const daemon = hosts.find(({ name }) => name === endedAt)?.daemon;
      if (daemon?.service.teams.authenticate(text) !== undefined)
        violated(`I8: ${id} is accepted where it was revoked`);
    }
  }

  /** No decision exceeds the limit; a capsule that was resumed without the database takes room, and was not decided. */
  #quotas(): void {
    const { hosts, model } = this.#world;
    const live = hosts
      .flatMap((host) => this.rows(host))
      .filter(({ id }) => this.now.capsules.has(id))
      .filter(isLive);
    const admitted = live.filter(({ id }) => !model.unadmitted.has(id));
    this.hasRoom = vcpusOf(live) < limits.runningVcpus;
    const decided = vcpusOf(admitted);
    if (decided > limits.runningVcpus)
      violated(`I12: ${admitted.map(({ id }) => id).join()} run with ${decided} vCPUs`);
  }

  /** All hosts are up, everything is reached, and a minute has passed: what each of them has agrees. */
  async atEnd(): Promise<void> {
    this.isDirty = true;
    await this.afterStep();
    const { hosts } = this.#world;
    const held = hosts.flatMap((host) => this.rows(host).map((row) => ({ ...row, host })));
    for (const { id, host, name, status, intent } of held) {
      const shared = this.now.capsules.get(id);
      if (shared === undefined) violated(`${id} of ${host.name} is not in the database`);
      if (intent !== null) violated(`${id} of ${host.name} has the intent ${intent} for ever`);
      const copied = [shared.host, shared.name, shared.status, shared.intent];
      if (JSON.stringify(copied) !== JSON.stringify([host.name, name, status, null]))
        violated(`${id} of ${host.name} is ${name} ${status}, and in the database ${copied.join(" ")}`);
      this.#ofGuest(id, status, host);
    }
    const ids = new Set(held.map(({ id }) => id));
    for (const [id, { host }] of this.now.capsules)
      if (host !== null && !ids.has(id)) violated(`${id} is in the database, and on no host`);
    this.#holders.atEnd(this.now);
    for (const host of hosts) this.#leftOver(host);
    this.#acknowledged(held);
    this.streams();
  }

  /** All hosts have followed the teams' versions, and the catalog. */
  streams(): void {
    this.#keys();
    for (const host of this.#world.hosts) this.#events(host);
  }

  /** The database has the statuses of some seconds ago. */
  copies(): void {
    for (const host of this.#world.hosts)
      for (const { id, status, intent } of this.rows(host)) {
        const shared = this.now.capsules.get(id);
        if (shared?.host !== host.name || intent !== null || shared.intent !== null) continue;
        if (shared.status !== status) violated(`${id} of ${host.name} is ${status}, and its copy is ${shared.status}`);
      }
  }

  #ofGuest(id: string, status: string, { machine }: SimulatedHost): void {
    const guest = machine.guests.get(id);
    if ((guest !== undefined) !== (status === "running")) violated(`${id} is ${status}, and has a VM or lacks it`);
    if (guest?.isHeld || guest?.isStopped) violated(`${id} is running, and its VM stands still`);
    if (status === "paused" && machine.checkpoints.get(id)?.isStale !== false)
      violated(`${id} is paused without its checkpoint`);
  }

  #leftOver({ machine, daemon, name }: SimulatedHost): void {
    const { store, templateRows, capsuleRows } = daemon!.service;
    for (const id of [...machine.guests.keys(), ...machine.folders, ...machine.checkpoints.keys()])
      if (store.get(id) === undefined) violated(`${id} has left a folder or VM on ${name}`);
    const rows = templateRows.all();
    const needed = rows.filter((row) => row.retiredAt === null || capsuleRows.needing(row.storage) > 0);
    const [files, named] = [[...machine.templates.keys()], needed.map(({ storage }) => storage)];
    if (files.sort().join() !== named.sort().join()) violated(`${name} has templates ${files}, and rows of ${named}`);
    const own = rows.filter(({ retiredAt }) => retiredAt === null).map(({ storage }) => storage);
    const shared = this.now.templates.filter(({ made_on, retired_at }) => made_on === name && retired_at === null);
    const known = shared.map(({ storage }) => storage);
    if (own.sort().join() !== known.sort().join())
      violated(`${name} has templates ${own}, and in the database ${known}`);
  }

  #acknowledged(held: (OwnRow & { host: SimulatedHost })[]): void {
    const { model, bucket } = this.#world;
    const byId = new Map(held.map(({ host: { name: host }, ...row }) => [row.id, { ...row, host }]));
    for (const { id, isEnded, isSure, names, status, holder } of model.capsules.values()) {
      const shared = this.now.capsules.get(id);
      const row = shared?.host === null ? shared : byId.get(id);
      if (isEnded && row !== undefined) violated(`I9: ${id} was destroyed, and is there`);
      if (isSure && row === undefined) violated(`I8: ${id} was made, and is gone`);
      if (row === undefined) continue;
      if (!bucket.isThere && row.host !== holder) violated(`I1: ${id} of ${holder} is on ${row.host}`);
      if (!names.includes(row.name)) violated(`I8: ${id} has the name ${row.name}, and not ${names.join(" or ")}`);
      if (status !== undefined && row.status !== status && !(row.status === "paused" && this.#isLeftPaused(row)))
        violated(`${id} was told to be ${status}, and is ${row.status}`);
    }
  }

  /** By a move that was given up, or that waits until the team runs fewer. */
  #isLeftPaused({ id, moving }: Pick<SharedCapsule | OwnRow, "id" | "moving">): boolean {
    return this.#world.model.leftPaused.has(id) || (Boolean(moving) && !this.hasRoom);
  }

  #keys(): void {
    const { hosts, model } = this.#world;
    for (const { id, text, state } of model.keys.values()) {
      for (const { daemon, name } of hosts) {
        const isAccepted = daemon!.services.teams.authenticate(text) !== undefined;
        if (state === "live" && !isAccepted) violated(`I8: ${id} was made, and is refused by ${name}`);
        if (state === "ended" && isAccepted) violated(`I8: ${id} was revoked, and is accepted by ${name}`);
      }
    }
  }

  /** A stream of events was told the last change of each capsule. */
  #events({ name, daemon }: SimulatedHost): void {
    const { told, followedFrom = Number.POSITIVE_INFINITY } = daemon!;
    for (const { id, status, version } of this.now.capsules.values())
      if (version > followedFrom && told.get(id) !== status)
        violated(`${name} told ${told.get(id)} of ${id}, which is ${status}`);
    for (const { id, version } of this.now.tombstones.values())
      if (version > followedFrom && (!told.has(id) || told.get(id) !== undefined))
        violated(`${name} told ${told.get(id)} of ${id}, which is gone`);
  }
}

function isLive({ status, intent }: OwnRow): boolean {
  return ["starting", "running"].includes(status) || ["resume", "start"].includes(intent ?? "");
}

function vcpusOf(rows: readonly OwnRow[]): number {
  return rows.reduce((sum, { vcpus }) => sum + vcpus, 0);
}
