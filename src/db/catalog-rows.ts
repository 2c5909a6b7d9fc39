/** Teams and keys as another database has them: a host of a cluster follows the cluster's. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";
import type { TeamRow } from "./team-rows.ts";

/** Times are epoch milliseconds. */
export interface CatalogKey {
  id: string;
  teamId: string;
  label: string;
  prefix: string | null;
  /** SHA-256 in hexadecimal digits. */
  hash: string;
  createdAt: number;
  revokedAt: number | null;
  expiresAt: number | null;
  madeBy: string | null;
  isSession: number;
}

export class CatalogRows {
  readonly #database: Database;
  readonly #teams: StatementSync;
  readonly #keys: StatementSync;
  readonly #putTeam: StatementSync;
  readonly #putKey: StatementSync;
  readonly #forgetKeys: StatementSync;
  readonly #endKeysOf: StatementSync;
  readonly #freeName: StatementSync;
  readonly #endKey: StatementSync;
  readonly #has: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#teams = database.prepare("SELECT id, name, created_at AS createdAt FROM teams ORDER BY id");
    this.#keys = database.prepare(
      `SELECT id, team_id AS teamId, label, prefix, lower(hex(hash)) AS hash, created_at AS createdAt, revoked_at AS revokedAt,
         expires_at AS expiresAt, made_by AS madeBy, is_session AS isSession FROM api_keys ORDER BY created_at, rowid`,
    );
    this.#putTeam = database.prepare(
      "INSERT INTO teams (id, name, created_at) VALUES (:id, :name, :createdAt) ON CONFLICT DO NOTHING",
    );
    this.#putKey = database.prepare(
      `INSERT INTO api_keys (id, team_id, label, prefix, hash, created_at, revoked_at, expires_at, made_by, is_session)
       SELECT :id, :teamId, :label, :prefix, :hash, :createdAt, :revokedAt, :expiresAt, :madeBy, :isSession
       WHERE EXISTS (SELECT 1 FROM teams WHERE id = :teamId)
       ON CONFLICT (id) DO UPDATE SET revoked_at = COALESCE(excluded.revoked_at, revoked_at), made_by = excluded.made_by`,
    );
    this.#endKeysOf = database.prepare(
      "UPDATE api_keys SET revoked_at = :atMs WHERE team_id = :id AND revoked_at IS NULL",
    );
    this.#freeName = database.prepare("UPDATE teams SET name = id WHERE id = :id");
    this.#endKey = database.prepare("UPDATE api_keys SET revoked_at = :atMs WHERE id = :id AND revoked_at IS NULL");
    this.#has = database.prepare(
      "SELECT 1 FROM api_keys WHERE id = :name UNION ALL SELECT 1 FROM api_keys WHERE hash = :hash",
    );
    this.#forgetKeys = database.prepare("DELETE FROM api_keys WHERE expires_at <= :expired OR revoked_at <= :revoked");
  }

  /** A team that was deleted elsewhere and still has capsules or files here: its keys end, and its name may be another's. */
  endTeam(id: string, atMs: number): void {
    transact(this.#database, () => {
      this.#endKeysOf.run({ id, atMs });
      this.#freeName.run({ id });
    });
  }

  endKeys(ids: readonly string[], atMs: number): void {
    transact(this.#database, () => {
      for (const id of ids) this.#endKey.run({ id, atMs });
    });
  }

  teams(): TeamRow[] {
    return this.#teams.all() as unknown as TeamRow[];
  }

  /** All keys, those that have ended too. */
  keys(): CatalogKey[] {
    return this.#keys.all() as unknown as CatalogKey[];
  }

  /** By its id, or its hash. A key that has ended counts as long as its row is kept. */
  has(name: string): boolean {
    return this.#has.get({ name, hash: Buffer.from(name, "hex") }) !== undefined;
  }

  /** One unsynced transaction: what a power cut takes is read again. Times of last use stay, and a key that has ended stays so. */
  put(teams: readonly TeamRow[], keys: readonly CatalogKey[], ended: { expired: number; revoked: number }): void {
    const put = () => {
      for (const { id, name, createdAt } of teams) this.#putTeam.run({ id, name, createdAt });
      for (const { hash, ...key } of keys) this.#putKey.run({ ...key, hash: Buffer.from(hash, "hex") });
      this.#forgetKeys.run(ended);
    };
    withoutSync(this.#database, () => transact(this.#database, put));
  }
}
