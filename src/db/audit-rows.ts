/**
 * The audit log's rows, append-only. Triggers in the schema (migrations.ts) refuse to change a row, and to remove one that
 * is not among the oldest of its team.
 */
import type { StatementSync } from "node:sqlite";
import type { AuditAction } from "../wire/audit.ts";
import { type Database, transact, withoutSync } from "./database.ts";

/** One entry; `at` in epoch milliseconds. */
export interface AuditRow {
  /** Increases over all teams. */
  id: number;
  at: number;
  teamId: string;
  keyId: string;
  keyName: string;
  address: string;
  action: AuditAction;
  capsuleId: string | null;
  subject: string | null;
  /** The HTTP status. */
  status: number;
}

export type NewAuditRow = Omit<AuditRow, "id">;

const selection = `id, at, team_id AS teamId, key_id AS keyId, key_name AS keyName, address, action,
  capsule_id AS capsuleId, subject, status FROM audit WHERE team_id = :teamId AND id < :before`;

export class AuditRows {
  readonly #database: Database;
  readonly #append: StatementSync;
  readonly #ofTeam: StatementSync;
  readonly #ofCapsule: StatementSync;
  readonly #counts: StatementSync;
  readonly #oldest: StatementSync;
  readonly #olderThan: StatementSync;
  readonly #raiseHorizon: StatementSync;
  readonly #forget: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#append = database.prepare(
      `INSERT INTO audit (at, team_id, key_id, key_name, address, action, capsule_id, subject, status)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#ofTeam = database.prepare(`SELECT ${selection} ORDER BY id DESC LIMIT :limit`);
    this.#ofCapsule = database.prepare(`SELECT ${selection} AND capsule_id = :capsuleId ORDER BY id DESC LIMIT :limit`);
    this.#counts = database.prepare("SELECT team_id AS teamId, COUNT(*) AS count FROM audit GROUP BY team_id");
    this.#oldest = database.prepare("SELECT id FROM audit WHERE team_id = ? ORDER BY id LIMIT 1 OFFSET ?");
    this.#olderThan = database.prepare(
      `SELECT MAX(id) AS id FROM (SELECT id, at FROM audit WHERE team_id = :teamId ORDER BY id LIMIT :limit)
       WHERE at < :at`,
    );
    this.#raiseHorizon = database.prepare(
      `INSERT INTO audit_horizons (team_id, through) VALUES (:teamId, :through)
       ON CONFLICT (team_id) DO UPDATE SET through = excluded.through`,
    );
    this.#forget = database.prepare("DELETE FROM audit WHERE team_id = :teamId AND id <= :through");
  }

  /** All of them are durable when this returns. */
  append(rows: readonly NewAuditRow[]): void {
    transact(this.#database, () => {
      for (const { at, teamId, keyId, keyName, address, action, capsuleId, subject, status } of rows) {
        this.#append.run(at, teamId, keyId, keyName, address, action, capsuleId, subject, status);
      }
    });
  }

  /** As `append`, durable with the next commit that is. */
  appendUnsynced(rows: readonly NewAuditRow[]): void {
    withoutSync(this.#database, () => this.append(rows));
  }

  /** Newest first: at most `limit` rows with ids below `before`. */
  list(teamId: string, { limit, before, capsuleId }: AuditQuery): AuditRow[] {
    const about = { teamId, limit, before: before ?? Number.MAX_SAFE_INTEGER };
    const rows = capsuleId === undefined ? this.#ofTeam.all(about) : this.#ofCapsule.all({ ...about, capsuleId });
    return rows as unknown as AuditRow[];
  }

  /** The number of rows by team. */
  counts(): Map<string, number> {
    const rows = this.#counts.all() as { teamId: string; count: number }[];
    return new Map(rows.map(({ teamId, count }) => [teamId, count]));
  }

  /** Removes the team's `count` oldest rows, if it has so many; returns how many it removed. */
  removeOldest(teamId: string, count: number): number {
    const row = this.#oldest.get(teamId, count - 1) as { id: number } | undefined;
    return row === undefined ? 0 : this.#forgetThrough(teamId, row.id);
  }

  /** Removes the rows older than `at` among the team's `limit` oldest; returns how many it removed. */
  removeBefore(teamId: string, at: number, limit: number): number {
    const { id } = this.#olderThan.get({ teamId, at, limit }) as { id: number | null };
    return id === null ? 0 : this.#forgetThrough(teamId, id);
  }

  #forgetThrough(teamId: string, through: number): number {
    return transact(this.#database, () => {
      this.#raiseHorizon.run({ teamId, through });
      return Number(this.#forget.run({ teamId, through }).changes);
    });
  }
}

export interface AuditQuery {
  limit: number;
  /** An id of a row. */
  before?: number | undefined;
  capsuleId?: string | undefined;
}
