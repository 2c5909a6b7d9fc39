/**
 * The catalog: teams and keys of the cluster, followed into this host's own tables, so that a request is authenticated without a
 * statement. The heartbeat brings the catalog's number; what has a higher one than the last read is read then.
 */
import type { Clock } from "../capsules/clock.ts";
import type { CatalogKey, CatalogRows } from "../db/catalog-rows.ts";
import type { TeamRow } from "../db/team-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import { teamsAndKeys } from "./keys.ts";
import type { Postgres } from "./postgres.ts";
import type { TemplatePlaces } from "./template-places.ts";

export interface RetiredTemplate {
  storage: string;
  teamId: string;
  name: string;
  retiredAt: number;
  /** By a DELETE, and not by a template of the same name. */
  isDeleted: boolean;
}

/** When teams and keys were last known to be the cluster's, kept over a restart. */
export interface Freshness {
  /** The time since then; infinite where it is not known. */
  ageMs(): number;
  /** They are now. */
  note(): void;
}

export interface CatalogOptions {
  sql: Postgres;
  host: string;
  rows: CatalogRows;
  clock: Pick<Clock, "now" | "ticks" | "after">;
  log: Log;
  /** A team is gone, with its keys. False: it has capsules or files here, and is asked for again. */
  onTeamDeleted: (team: TeamRow) => boolean;
  /** Templates whose files are here and that are no longer used. */
  onRetired: (templates: RetiredTemplate[]) => Promise<void>;
  /** Keys may have ended. */
  onKeys: () => void;
  places: Pick<TemplatePlaces, "follow">;
  /** Templates whose files are here. */
  templates: Pick<TemplateRows, "all">;
  freshness: Freshness;
  onLimits: (limits: Readonly<Record<string, unknown>>) => void;
  /** How long a revoked key is kept. */
  revokedKeepMs: number;
}

const what = { what: "read teams and keys" };
/** After a restart keys count as read by so much earlier at most. */
const noteMs = 10_000;

export class Catalog {
  readonly #options: CatalogOptions;
  #applied = 0;
  /** The database's, in time. */
  #place: string | undefined;
  #generation = 0;
  #reading: Promise<boolean> | undefined;
  #freshAt: number;
  #notedAt = Number.NEGATIVE_INFINITY;
  #cancelStale = () => {};
  /** Teams that were deleted elsewhere, and are not forgotten here yet. */
  readonly #ending = new Map<string, TeamRow>();

  constructor(options: CatalogOptions) {
    this.#options = options;
    this.#freshAt = options.clock.ticks() - options.freshness.ageMs();
  }

  /** Reads what has changed up to this number. Resolves with false when that failed: the next heartbeat tries again. */
  follow(number: number, place?: string): Promise<boolean> {
    if (place !== this.#place) this.#applied = 0; // the numbers of a database that was put back say nothing about those read so far
    this.#place = place;
    if (number === this.#applied) {
      this.#setFresh(this.#options.clock.ticks());
      this.#endTeams();
      return Promise.resolve(true);
    }
    // A database that was put back has forgotten changes: everything is read anew.
    if (number < this.#applied) this.#applied = 0;
    this.#reading ??= this.#read(number)
      .then(() => true)
      .catch((error: unknown) => {
        if (!this.#options.sql.isAway) this.#options.log.error({ err: error }, "teams and keys could not be read");
        return false;
      })
      .finally(() => {
        this.#reading = undefined;
      });
    return this.#reading;
  }

  /** Since teams and keys were last known to be the cluster's; infinite before the first time. */
  get staleMs(): number {
    return this.#options.clock.ticks() - this.#freshAt;
  }

  /** Calls back whenever teams and keys have not been compared with the cluster's for that time, until `stop`. */
  onStale(afterMs: number, callback: () => void): void {
    const look = () => {
      const leftMs = afterMs - this.staleMs;
      if (leftMs <= 0) callback();
      // Sockets that are opened later have fresh keys, and so the whole time.
      this.#cancelStale = this.#options.clock.after(leftMs > 0 ? leftMs : afterMs, look);
    };
    look();
  }

  stop(): void {
    this.#cancelStale();
  }

  /** Another one whenever changes were put into this host's rows. */
  get generation(): number {
    return this.#generation;
  }

  #setFresh(at: number): void {
    this.#freshAt = at;
    if (at - this.#notedAt < noteMs) return;
    this.#notedAt = at;
    try {
      this.#options.freshness.note();
    } catch (error) {
      this.#options.log.warn(
        { err: error },
        "a restart will count the keys as read earlier: the time could not be kept",
      );
    }
  }

  /** Keys, and the teams of those, that count here before the next heartbeat. */
  put(keys: readonly CatalogKey[], teams: readonly TeamRow[] = []): void {
    this.#options.rows.put(teams, keys, this.#ended());
  }

  async #read(number: number): Promise<void> {
    const { sql, host, rows, clock, onRetired, onKeys, places, onLimits, templates } = this.#options;
    const began = clock.ticks();
    const before = this.#applied === 0 ? rows.keys().filter(({ revokedAt }) => revokedAt === null) : [];
    const { teams, keys } = await teamsAndKeys(sql, this.#applied);
    // A template that was made elsewhere may have been fetched.
    const here = templates.all().flatMap(({ storage, retiredAt }) => (retiredAt === null ? [storage] : []));
    const retired = await sql.query<RetiredTemplate>(
      `SELECT storage, team_id AS "teamId", name, retired_at AS "retiredAt", is_deleted AS "isDeleted"
       FROM templates WHERE catalog > $1 AND (made_on = $2 OR storage = ANY($3)) AND retired_at IS NOT NULL`,
      [this.#applied, host, here],
      what,
    );
    await places.follow(this.#applied);
    const [cluster] = await sql.query<{ limits: Record<string, unknown> }>("SELECT limits FROM cluster", [], what);
    if (cluster !== undefined) onLimits(cluster.limits);
    for (const team of teams) if (team.deletedAt !== null) this.#ending.set(team.id, team);
    this.#generation += 1;
    this.#endTeams();
    rows.put(
      teams.filter(({ deletedAt }) => deletedAt === null),
      keys,
      this.#ended(),
    );
    const known = new Set(keys.map(({ id }) => id));
    const unknown = before.filter(({ id }) => !known.has(id)).map(({ id }) => id);
    if (unknown.length > 0) rows.endKeys(unknown, clock.now());
    if (retired.length > 0) await onRetired(retired);
    this.#applied = number;
    this.#setFresh(began);
    onKeys();
  }

  /** Its keys end and its name is free at once, whatever it still has here. */
  #endTeams(): void {
    const { rows, clock, onTeamDeleted } = this.#options;
    for (const team of this.#ending.values()) {
      if (onTeamDeleted(team)) this.#ending.delete(team.id);
      else rows.endTeam(team.id, clock.now());
    }
  }

  #ended(): { expired: number; revoked: number } {
    const now = this.#options.clock.now();
    return { expired: now, revoked: now - this.#options.revokedKeepMs };
  }
}
