/**
 * The audit log's rows, append-only but for the exit code of a row that has none. Triggers in the schema (migrations.ts) refuse
 * any other change, and to remove a row that is newer than all that retention has removed of its team.
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
  /** The exit code of the command; null: none is known. */
  exitCode: number | null;
}

export interface NewAuditRow extends Omit<AuditRow, "id" | "exitCode"> {
  exitCode?: number | null;
}

export interface AppendedRow {
  id: number;
  kind: AuditKind;
}

/** Each kind has a share of a team's log that no other kind takes (src/teams/audit-shares.ts). */
export type AuditKind = "keys" | "lifecycle" | "templates" | "other";

/** A refused request counts as `other`. A request whose client disconnected (499) may have made its change. Key '': the service. */
const kind = `CASE
  WHEN status >= 400 AND status <> 499 AND key_id <> '' THEN 'other'
  WHEN action LIKE 'key.%' OR action LIKE 'sign-in%' THEN 'keys'
  WHEN action LIKE 'capsule.%' THEN 'lifecycle'
  WHEN action LIKE 'template.%' THEN 'templates'
  ELSE 'other' END`;

export interface KindCount {
  kind: AuditKind;
  count: number;
  /** The ids of the first and the last row. */
  first: number;
  last: number;
}

const fields = `id, at, team_id AS teamId, key_id AS keyId, key_name AS keyName, address, action,
  capsule_id AS capsuleId, subject, status, exit_code AS exitCode`;
const selection = `${fields} FROM audit WHERE team_id = :teamId AND id < :before`;

export class AuditRows {
  readonly #database: Database;
  readonly #append: StatementSync;
  readonly #addExitCode: StatementSync;
  readonly #ofTeam: StatementSync;
  readonly #ofCapsule: StatementSync;
  readonly #after: StatementSync;
  readonly #byId: StatementSync;
  readonly #counts: StatementSync;
  readonly #kinds: StatementSync;
  readonly #atOrBefore: StatementSync;
  readonly #oldest: StatementSync;
  readonly #olderThan: StatementSync;
  readonly #raiseHorizon: StatementSync;
  readonly #forget: StatementSync;
  readonly #sentThrough: StatementSync;
  readonly #noteSent: StatementSync;

  /** Called with the id of each row that has got its exit code after it was written. */
  onExitCode: (id: number) => void = () => {};

  constructor(database: Database) {
    this.#database = database;
    this.#append = database.prepare(
      `INSERT INTO audit (at, team_id, key_id, key_name, address, action, capsule_id, subject, status, exit_code)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id, ${kind} AS kind`,
    );
    this.#addExitCode = database.prepare("UPDATE audit SET exit_code = ? WHERE id = ? AND exit_code IS NULL");
    this.#ofTeam = database.prepare(`SELECT ${selection} ORDER BY id DESC LIMIT :limit`);
    this.#ofCapsule = database.prepare(`SELECT ${selection} AND capsule_id = :capsuleId ORDER BY id DESC LIMIT :limit`);
    this.#after = database.prepare(`SELECT ${fields} FROM audit WHERE id > ? ORDER BY id LIMIT ?`);
    this.#byId = database.prepare(`SELECT ${fields} FROM audit WHERE id = ?`);
    this.#counts = database.prepare("SELECT team_id AS teamId, COUNT(*) AS count FROM audit GROUP BY team_id");
    this.#kinds = database.prepare(
      `SELECT ${kind} AS kind, COUNT(*) AS count, MIN(id) AS first, MAX(id) AS last FROM
       (SELECT id, action, status, key_id FROM audit WHERE team_id = ? AND id > ? ORDER BY id LIMIT ?) GROUP BY 1`,
    );
    this.#atOrBefore = database.prepare("SELECT id, at FROM audit WHERE id <= ? ORDER BY id DESC LIMIT 1");
    this.#oldest = database.prepare(
      `SELECT id FROM audit WHERE team_id = ? AND id >= ? AND ${kind} = ? ORDER BY id LIMIT 1 OFFSET ?`,
    );
    this.#olderThan = database.prepare(
      `SELECT MAX(id) AS id FROM (SELECT id, at FROM audit WHERE team_id = :teamId ORDER BY id LIMIT :limit)
       WHERE at < :at`,
    );
    this.#raiseHorizon = database.prepare(
      `INSERT INTO audit_horizons (team_id, through) VALUES (:teamId, :through)
       ON CONFLICT (team_id) DO UPDATE SET through = MAX(through, excluded.through)`,
    );
    this.#sentThrough = database.prepare("SELECT COALESCE(MAX(through), 0) AS through FROM audit_sent");
    this.#noteSent = database.prepare("INSERT OR IGNORE INTO audit_sent (through) VALUES (?)");
    this.#forget = database.prepare(
      `DELETE FROM audit WHERE team_id = :teamId AND id BETWEEN :from AND :through AND (:kind IS NULL OR ${kind} = :kind)`,
    );
  }

  /** All of it is durable when this returns. `exitCodes` are added to earlier rows by their ids, where those are not removed. */
  append(rows: readonly NewAuditRow[], exitCodes: ReadonlyMap<number, number> = new Map()): AppendedRow[] {
    return transact(this.#database, () => {
      for (const [id, exitCode] of exitCodes) {
        this.#addExitCode.run(exitCode, id);
        this.onExitCode(id);
      }
      return rows.map(
        ({ at, teamId, keyId, keyName, address, action, capsuleId, subject, status, exitCode = null }) => {
          const about = [keyId, keyName, address, action, capsuleId, subject, status, exitCode];
          return this.#append.get(at, teamId, ...about) as unknown as AppendedRow;
        },
      );
    });
  }

  /** As `append`, durable with the next commit that is. */
  appendUnsynced(rows: readonly NewAuditRow[], exitCodes?: ReadonlyMap<number, number>): AppendedRow[] {
    return withoutSync(this.#database, () => this.append(rows, exitCodes));
  }

  /** Newest first: at most `limit` rows with ids below `before`. */
  list(teamId: string, { limit, before, capsuleId }: AuditQuery): AuditRow[] {
    const about = { teamId, limit, before: before ?? Number.MAX_SAFE_INTEGER };
    const rows = capsuleId === undefined ? this.#ofTeam.all(about) : this.#ofCapsule.all({ ...about, capsuleId });
    return rows as unknown as AuditRow[];
  }

  /** Rows of all teams that follow the row with this id, oldest first. */
  after(id: number, limit: number): AuditRow[] {
    return this.#after.all(id, limit) as unknown as AuditRow[];
  }

  get(id: number): AuditRow | undefined {
    return this.#byId.get(id) as AuditRow | undefined;
  }

  /** The id of the last row that a cluster had when this folder left it; 0: it has left none. */
  sentThrough(): number {
    return (this.#sentThrough.get() as { through: number }).through;
  }

  /** A cluster has all rows up to this id, and gets none of them again. Durable when this returns. */
  noteSent(id: number): void {
    this.#noteSent.run(id);
  }

  /** The number of rows by team. */
  counts(): Map<string, number> {
    const rows = this.#counts.all() as { teamId: string; count: number }[];
    return new Map(rows.map(({ teamId, count }) => [teamId, count]));
  }

  /** The kinds of the team's `limit` rows that follow the row `after`. */
  kinds(teamId: string, after: number, limit: number): KindCount[] {
    return this.#kinds.all(teamId, after, limit) as unknown as KindCount[];
  }

  /**
   * The time of a row of any team that is `at` or earlier; undefined: there is none. The rows are halved, not read, so the row is
   * the newest such one only if the clock was not set while they were written.
   */
  timeUntil(at: number): number | undefined {
    const rowAt = (id: number) => this.#atOrBefore.get(id) as { id: number; at: number } | undefined;
    let [low, high] = [0, rowAt(Number.MAX_SAFE_INTEGER)?.id ?? 0];
    let time: number | undefined;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      const row = rowAt(middle);
      if (row !== undefined && row.at > at) {
        high = middle - 1;
        continue;
      }
      time = row?.at ?? time;
      low = middle;
    }
    return time;
  }

  /** Removes the team's `count` oldest rows of that kind from `first` on; returns the id of the last, or undefined: there are fewer. */
  removeOldest(teamId: string, of: Pick<KindCount, "kind" | "first">, count: number): number | undefined {
    const row = this.#oldest.get(teamId, of.first, of.kind, count - 1) as { id: number } | undefined;
    if (row !== undefined) this.#forgetThrough(teamId, row.id, of);
    return row?.id;
  }

  /** Removes the rows older than `at` among the team's `limit` oldest; returns how many it removed. */
  removeBefore(teamId: string, at: number, limit: number): number {
    const { id } = this.#olderThan.get({ teamId, at, limit }) as { id: number | null };
    return id === null ? 0 : this.#forgetThrough(teamId, id, { kind: null, first: 0 });
  }

  #forgetThrough(teamId: string, through: number, of: { kind: AuditKind | null; first: number }): number {
    return transact(this.#database, () => {
      this.#raiseHorizon.run({ teamId, through });
      return Number(this.#forget.run({ teamId, through, from: of.first, kind: of.kind }).changes);
    });
  }
}

export interface AuditQuery {
  limit: number;
  /** An id of a row. */
  before?: number | undefined;
  capsuleId?: string | undefined;
}
