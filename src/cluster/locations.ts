/** Where capsules are: those of this host by its own rows, others by a bounded map, and by PostgreSQL where that has none. */
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { ReleasedCapsule } from "../http/released.ts";
import { capsuleNamePattern } from "../wire/defaults.ts";
import { Unanswered } from "./failures.ts";
import type { Holder, Holders } from "./holders.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { capsuleByRow, leftCapsule, releasedCapsule } from "./released-capsules.ts";
import { rowSelection } from "./rows.ts";

export interface LocationsOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "alive" | "hosts" | "isAbsent">;
  store: Pick<CapsuleStore, "get" | "idNamed" | "leaving" | "onChange" | "wasDestroyed">;
  /** How long a request waits for a capsule that is leaving this host; default 2 s. */
  leavingMs?: number | undefined;
  /** A capsule that this host acquires; undefined: it acquires none of that name. */
  coming?: (team: string | undefined, key: string) => Promise<void> | undefined;
  /** The database says that this host holds it, and it is not here. */
  onDoubt?: (id: string) => void;
}

interface Left {
  atHost: string | null;
  ofEpoch: number;
  isLost: boolean;
}

interface Found {
  host: string | null;
  id: string;
  intent: string | null;
  /** The row, where no host holds it. */
  released: unknown;
}

const entriesMax = 100_000;
/** A lookup is given up after that time: its client then waits for the other hosts. */
const [onceMs, allMs] = [1_500, 2_000];
const defaultLeavingMs = 2_000;
const idPattern = /^cl-[0-9a-z]{25}$/;
const namePattern = new RegExp(capsuleNamePattern, "u");

export class Locations implements Holders {
  readonly #options: LocationsOptions;
  /** Names of hosts by team and key, the one used last at the end. */
  readonly #known = new Map<string, string>();
  #askHosts = async (_team: string | undefined, _key: string): Promise<string | undefined> => undefined;

  constructor(options: LocationsOptions) {
    this.#options = options;
  }

  async find(team: string | undefined, key: string): Promise<Holder> {
    if (this.#options.coming?.(team, key) !== undefined) return { at: "coming" };
    const here = this.#hereOf(team, key);
    if (here !== undefined && !(await this.#hasLeft(here))) return this.#isLeaving(here);
    // PostgreSQL refuses text with a NUL, which is no sign that it is away.
    if (!(isId(team, key) ? idPattern : namePattern).test(key)) return { at: "nowhere" };
    const { sql } = this.#options;
    const entry = entryOf(team, key);
    const known = this.#known.get(entry);
    if (known !== undefined) {
      this.#note(entry, known);
      return this.#at(known);
    }
    // A database that is away is asked after the hosts, and before them otherwise: it may be back, or have gone.
    const isAskedFirst = sql.isAway;
    const found = isAskedFirst ? await this.#ask(team, key) : undefined;
    if (found !== undefined) return found;
    try {
      return await this.#look(team, key);
    } catch (error) {
      if (!(error instanceof Unanswered)) throw error; // a row of the database that no host has written, or a mistake
      return (isAskedFirst ? undefined : await this.#ask(team, key)) ?? { at: "unavailable" };
    }
  }

  async #look(team: string | undefined, key: string, isAgain = false): Promise<Holder> {
    const { sql, membership } = this.#options;
    const [row] = await sql.query<Found>(
      `SELECT host, id, intent, CASE WHEN host IS NULL THEN to_jsonb(capsules) END AS released
       FROM capsules WHERE ($1::text IS NULL OR team_id = $1) AND ${isId(team, key) ? "id" : "name"} = $2`,
      [team ?? null, key],
      { what: "find a capsule", onceMs, allMs },
    );
    if (row === undefined) return { at: "nowhere" };
    if (row.host === null) return { at: "released", capsule: releasedCapsule(row.released) };
    if (row.host === membership.me.name) return await this.#ofThisHost(team, key, row, isAgain);
    this.#note(entryOf(team, key), row.host);
    return this.#at(row.host);
  }

  /** Its row comes, or has just gone; anything else is settled, and no sign that there is no such capsule. */
  async #ofThisHost(team: string | undefined, key: string, row: Found, isAgain: boolean): Promise<Holder> {
    const { store, coming, onDoubt } = this.#options;
    if (coming?.(team, key) !== undefined) return { at: "coming" };
    const here = this.#hereOf(team, key);
    if (here !== undefined) return this.#isLeaving(here);
    if (store.wasDestroyed(row.id) || row.intent === "create") return { at: "nowhere" };
    if (!isAgain) return await this.#look(team, key, true); // it was released in this moment
    onDoubt?.(row.id);
    return { at: "unavailable" };
  }

  /** `ask`: asks all other hosts, and resolves with the one that holds the capsule. */
  askBy(ask: (team: string | undefined, key: string) => Promise<string | undefined>): void {
    this.#askHosts = ask;
  }

  async #ask(team: string | undefined, key: string): Promise<Holder | undefined> {
    const host = await this.#askHosts(team, key);
    if (host === undefined) return undefined;
    this.#note(entryOf(team, key), host);
    return this.#at(host);
  }

  knows(team: string | undefined, key: string): boolean {
    return this.#known.has(entryOf(team, key)) || this.#isHere(team, key);
  }

  forget(team: string | undefined, key: string): void {
    this.#known.delete(entryOf(team, key));
  }

  leaving(team: string | undefined, key: string): Promise<unknown> | undefined {
    const here = this.#hereOf(team, key);
    return here !== undefined && this.#options.store.leaving.has(here) ? this.#hasLeft(here) : undefined;
  }

  async left(team: string, key: string, host: string): Promise<ReleasedCapsule | "elsewhere" | "nowhere"> {
    const found = await this.#row(team, key);
    if (found === undefined) return "nowhere";
    const { atHost, ofEpoch, isLost, ...row } = found;
    return atHost === host ? leftCapsule(row, { host, epoch: ofEpoch, isLost }) : "elsewhere";
  }

  async comingRow(team: string, key: string): Promise<ReleasedCapsule | undefined> {
    const found = await this.row(team, key);
    const host = found?.view.host;
    return host === null || host === this.#options.membership.me.name ? found : undefined;
  }

  /** The capsule as lists show it. */
  async row(team: string, key: string): Promise<ReleasedCapsule | undefined> {
    const found = await this.#row(team, key);
    if (found === undefined) return undefined;
    const { atHost, ofEpoch, isLost: _, ...row } = found;
    return capsuleByRow(row, { host: atHost, epoch: ofEpoch });
  }

  async #row(team: string, key: string): Promise<(Capsule & Left) | undefined> {
    if (!(isId(team, key) ? idPattern : namePattern).test(key)) return undefined;
    const [found] = await this.#options.sql.query<Capsule & Left>(
      `SELECT ${rowSelection}, host AS "atHost", epoch AS "ofEpoch", lost_at IS NOT NULL AS "isLost" FROM capsules
       WHERE team_id = $1 AND ${isId(team, key) ? "id" : "name"} = $2`,
      [team, key],
      { what: "find a capsule", onceMs, allMs },
    );
    return found;
  }

  peers(): string[] {
    const { membership } = this.#options;
    const others = membership.hosts().filter(({ name, isExpired }) => name !== membership.me.name && !isExpired);
    return others.map(({ name }) => name);
  }

  isAbsent(host: string): boolean {
    return this.#options.membership.isAbsent(host);
  }

  peer(host: string, orExpired = false): { host: string; address: string; port: number } | undefined {
    const row = this.#options.membership.alive(host, orExpired);
    return row === undefined ? undefined : { host, address: row.address, port: row.port };
  }

  /** False: it stays, or is leaving still. Its row is read again then. */
  async #hasLeft(id: string): Promise<boolean> {
    const { store, leavingMs = defaultLeavingMs } = this.#options;
    if (!store.leaving.has(id)) return false;
    const { promise, resolve } = Promise.withResolvers<void>();
    const off = store.onChange(id, () => resolve());
    const timer = setTimeout(resolve, leavingMs);
    await promise;
    clearTimeout(timer);
    off();
    return store.get(id) === undefined;
  }

  /** As long as PostgreSQL has not said so, it is nobody's. */
  #isLeaving(id: string): Holder {
    return this.#options.store.leaving.has(id) ? { at: "unavailable" } : { at: "here" };
  }

  #isHere(team: string | undefined, key: string): boolean {
    return this.#hereOf(team, key) !== undefined;
  }

  #hereOf(team: string | undefined, key: string): string | undefined {
    const { store } = this.#options;
    const id = team === undefined || isId(team, key) ? key : store.idNamed(team, key);
    const row = id === undefined ? undefined : store.get(id);
    const isHere = row !== undefined && (team === undefined || row.teamId === team) && row.intent !== "destroy";
    return isHere ? row.id : undefined;
  }

  #at(host: string): Holder {
    return this.#options.membership.alive(host) === undefined ? { at: "unavailable", host } : { at: "host", host };
  }

  #note(entry: string, host: string): void {
    this.#known.delete(entry);
    this.#known.set(entry, host);
    if (this.#known.size > entriesMax) this.#known.delete(this.#known.keys().next().value!);
  }
}

function entryOf(team: string | undefined, key: string): string {
  return `${team ?? ""}/${key}`;
}

/** No name begins as ids do. */
function isId(team: string | undefined, key: string): boolean {
  return team === undefined || key.startsWith("cl-");
}
