/**
 * The catalog: teams and keys of the cluster, followed into this host's own tables, so that a request is authenticated without a
 * statement. The heartbeat brings the catalog's number; what has a higher one than the last read is read then.
 */
import type { Clock } from "../capsules/clock.ts";
import type { CatalogKey, CatalogRows } from "../db/catalog-rows.ts";
import type { TeamRow } from "../db/team-rows.ts";
import type { Log } from "../log.ts";
import type { Postgres } from "./postgres.ts";

export interface RetiredTemplate {
  storage: string;
  teamId: string;
  name: string;
  retiredAt: number;
  /** By a DELETE, and not by a template of the same name. */
  isDeleted: boolean;
}

export interface CatalogOptions {
  sql: Postgres;
  host: string;
  rows: CatalogRows;
  clock: Pick<Clock, "now">;
  log: Log;
  /** A team is gone, with its keys. */
  onTeamDeleted: (team: TeamRow) => void;
  /** Templates that were made here and are no longer used. */
  onRetired: (templates: RetiredTemplate[]) => Promise<void>;
  /** How long a revoked key is kept. */
  revokedKeepMs: number;
}

const what = { what: "read teams and keys" };

export class Catalog {
  readonly #options: CatalogOptions;
  #applied = 0;
  #reading: Promise<void> | undefined;

  constructor(options: CatalogOptions) {
    this.#options = options;
  }

  /** Reads what has changed up to this number. Resolves also when that failed: the next heartbeat tries again. */
  follow(number: number): Promise<void> {
    if (number <= this.#applied) return Promise.resolve();
    this.#reading ??= this.#read(number)
      .catch((error: unknown) => {
        if (!this.#options.sql.isAway) this.#options.log.error({ err: error }, "teams and keys could not be read");
      })
      .finally(() => {
        this.#reading = undefined;
      });
    return this.#reading;
  }

  /** A key that this host has made or revoked: it counts here before the next heartbeat. */
  put(keys: readonly CatalogKey[]): void {
    this.#options.rows.put([], keys, this.#ended());
  }

  async #read(number: number): Promise<void> {
    const { sql, host, rows, onTeamDeleted, onRetired } = this.#options;
    const teams = await sql.query<TeamRow & { deletedAt: number | null }>(
      `SELECT id, name, created_at AS "createdAt", deleted_at AS "deletedAt" FROM teams WHERE catalog > $1 ORDER BY catalog`,
      [this.#applied],
      what,
    );
    const keys = await sql.query<CatalogKey & { isOfDeleted: boolean }>(
      `SELECT k.id, k.team_id AS "teamId", k.label, k.prefix, k.hash, k.created_at AS "createdAt", k.revoked_at AS "revokedAt",
         k.expires_at AS "expiresAt", k.made_by AS "madeBy", k.is_session AS "isSession"
       FROM keys k JOIN teams t ON t.id = k.team_id AND t.deleted_at IS NULL WHERE k.catalog > $1 ORDER BY k.catalog`,
      [this.#applied],
      what,
    );
    const retired = await sql.query<RetiredTemplate>(
      `SELECT storage, team_id AS "teamId", name, retired_at AS "retiredAt", is_deleted AS "isDeleted"
       FROM templates WHERE catalog > $1 AND made_on = $2 AND retired_at IS NOT NULL`,
      [this.#applied, host],
      what,
    );
    for (const team of teams) if (team.deletedAt !== null) onTeamDeleted(team);
    rows.put(
      teams.filter(({ deletedAt }) => deletedAt === null),
      keys,
      this.#ended(),
    );
    if (retired.length > 0) await onRetired(retired);
    this.#applied = number;
  }

  #ended(): { expired: number; revoked: number } {
    const now = this.#options.clock.now();
    return { expired: now, revoked: now - this.#options.revokedKeepMs };
  }
}
