/** Team and API key rows. A row has the SHA-256 of a key, not the key. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";

export interface TeamRow {
  id: string;
  name: string;
  createdAt: number;
}

export interface TeamUse extends TeamRow {
  capsules: number;
  templates: number;
}

/** Times are epoch milliseconds. */
export interface KeyRow {
  id: string;
  teamId: string;
  team: string;
  label: string;
  /** The key's first characters; null in rows of early releases. */
  prefix: string | null;
  createdAt: number;
  revokedAt: number | null;
  lastUsedAt: number | null;
  /** null: never. */
  expiresAt: number | null;
  /** Id of the key that made it; null: the operator, or a release before this column. Never the key of a session. */
  madeBy: string | null;
}

export interface NewKeyRow {
  id: string;
  teamId: string;
  label: string;
  prefix: string;
  /** SHA-256 in hexadecimal digits. */
  hash: string;
  createdAt: number;
  expiresAt: number | null;
  madeBy: string | null;
  /** Made by signing in to the dashboard. */
  isSession: boolean;
}

/** The key that new keys count as made by; see `maker`. */
export interface Maker {
  /** null: none, because the operator or an earlier release made the session. */
  id: string | null;
  expiresAt: number | null;
}

const keySelection = `k.id, k.team_id AS teamId, t.name AS team, k.label, k.prefix,
  k.created_at AS createdAt, k.revoked_at AS revokedAt, k.last_used_at AS lastUsedAt, k.expires_at AS expiresAt,
  k.made_by AS madeBy
  FROM api_keys k JOIN teams t ON t.id = k.team_id`;
/** Revoked keys of one team whose rows are kept, the last ones. */
export const revokedKeysMax = 1_000;

const isLive = "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > :now)";

/** The key and all keys that it made, directly and indirectly. UNION drops duplicates, so the recursion ends. */
const withMade = `WITH RECURSIVE made (id) AS (
  VALUES (:keyId) UNION SELECT k.id FROM api_keys k JOIN made ON k.made_by = made.id
)`;

export class TeamRows {
  readonly #database: Database;
  readonly #byName: StatementSync;
  readonly #insert: StatementSync;
  readonly #list: StatementSync;
  readonly #deletions: StatementSync[];
  readonly #insertKey: StatementSync;
  readonly #live: StatementSync;
  readonly #isLive: StatementSync;
  readonly #hasEnded: StatementSync;
  readonly #liveById: StatementSync;
  readonly #keys: StatementSync;
  readonly #hasKeys: StatementSync;
  readonly #ofTeam: StatementSync;
  readonly #forget: StatementSync;
  readonly #maker: StatementSync;
  readonly #revoke: StatementSync;
  readonly #teamOf: StatementSync;
  readonly #passOn: StatementSync;
  readonly #trim: StatementSync;
  readonly #isMadeWith: StatementSync;
  readonly #used: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#byName = database.prepare("SELECT id, name, created_at AS createdAt FROM teams WHERE name = ?");
    this.#insert = database.prepare("INSERT INTO teams (id, name, created_at) VALUES (:id, :name, :createdAt)");
    this.#list = database.prepare(
      `SELECT id, name, created_at AS createdAt,
         (SELECT COUNT(*) FROM capsules WHERE team_id = t.id) AS capsules,
         (SELECT COUNT(*) FROM templates WHERE team_id = t.id AND retired_at IS NULL) AS templates
       FROM teams t ORDER BY name`,
    );
    const isUsed =
      "EXISTS (SELECT 1 FROM capsules WHERE team_id = :id) OR EXISTS (SELECT 1 FROM templates WHERE team_id = :id)";
    this.#deletions = [
      `DELETE FROM api_keys WHERE team_id = :id AND NOT (${isUsed})`,
      `DELETE FROM idempotency WHERE team_id = :id AND NOT (${isUsed})`,
      `DELETE FROM teams WHERE id = :id AND NOT (${isUsed})`,
    ].map((statement) => database.prepare(statement));
    this.#insertKey = database.prepare(
      `INSERT INTO api_keys (id, team_id, label, prefix, hash, created_at, expires_at, made_by, is_session)
       VALUES (:id, :teamId, :label, :prefix, :hash, :createdAt, :expiresAt, :madeBy, :isSession)`,
    );
    this.#live = database.prepare(`SELECT ${keySelection} WHERE k.hash = :hash AND ${isLive}`);
    this.#liveById = database.prepare(`SELECT ${keySelection} WHERE k.id = :keyId AND ${isLive}`);
    this.#isLive = database.prepare(`SELECT 1 FROM api_keys k WHERE k.id = :keyId AND ${isLive}`);
    this.#hasEnded = database.prepare(`SELECT 1 FROM api_keys k WHERE k.id = :keyId AND NOT (${isLive})`);
    this.#keys = database.prepare(`SELECT ${keySelection} ORDER BY t.name, k.created_at, k.id`);
    this.#hasKeys = database.prepare(
      "SELECT 1 FROM api_keys WHERE team_id = (SELECT id FROM teams WHERE name = ?) LIMIT 1",
    );
    this.#ofTeam = database.prepare(
      `SELECT ${keySelection} WHERE k.team_id = :teamId AND ${isLive} ORDER BY k.created_at, k.rowid`,
    );
    this.#forget = database.prepare("DELETE FROM api_keys WHERE expires_at <= :expired OR revoked_at <= :revoked");
    this.#maker = database.prepare(
      `SELECT CASE k.is_session WHEN 1 THEN k.made_by ELSE k.id END AS id,
         CASE k.is_session WHEN 1 THEN m.expires_at ELSE k.expires_at END AS expiresAt
       FROM api_keys k LEFT JOIN api_keys m ON m.id = k.made_by WHERE k.id = :keyId AND ${isLive}`,
    );
    this.#revoke = database.prepare(
      `${withMade} UPDATE api_keys SET revoked_at = :atMs WHERE revoked_at IS NULL AND id IN made
         AND EXISTS (SELECT 1 FROM api_keys WHERE id = :keyId AND revoked_at IS NULL) RETURNING id`,
    );
    this.#passOn = database.prepare(
      `UPDATE api_keys SET made_by = (SELECT made_by FROM api_keys WHERE id = :keyId)
       WHERE made_by = :keyId AND EXISTS (SELECT 1 FROM api_keys WHERE id = :keyId AND revoked_at IS NULL)`,
    );
    this.#trim = database.prepare(
      `DELETE FROM api_keys WHERE rowid IN (
         SELECT rowid FROM api_keys WHERE team_id = ? AND revoked_at IS NOT NULL
         ORDER BY revoked_at DESC, rowid DESC LIMIT -1 OFFSET ${revokedKeysMax})`,
    );
    this.#teamOf = database.prepare("SELECT team_id AS id FROM api_keys WHERE id = ?");
    this.#isMadeWith = database.prepare(`${withMade} SELECT 1 FROM made WHERE id = :madeId AND id <> :keyId`);
    this.#used = database.prepare("UPDATE api_keys SET last_used_at = ? WHERE id = ?");
  }

  named(name: string): TeamRow | undefined {
    return this.#byName.get(name) as TeamRow | undefined;
  }

  /** The team of that name, inserted if there is none. */
  ensure(row: TeamRow): TeamRow {
    return transact(this.#database, () => {
      const found = this.named(row.name);
      if (found === undefined) this.#insert.run({ ...row });
      return found ?? row;
    });
  }

  list(): TeamUse[] {
    return this.#list.all() as unknown as TeamUse[];
  }

  /** With its keys. False, and nothing is changed, while it has capsules or templates, those being removed included. */
  delete(id: string): boolean {
    return transact(this.#database, () => this.#deletions.map((each) => each.run({ id }).changes).at(-1) === 1);
  }

  insertKey(key: NewKeyRow): void {
    this.#insertKey.run({ ...key, hash: Buffer.from(key.hash, "hex"), isSession: key.isSession ? 1 : 0 });
  }

  /** Runs `work`, which reads and inserts keys, in one transaction. */
  transact<T>(work: () => T): T {
    return transact(this.#database, work);
  }

  /**
   * The key that keys made with this one count as made by: itself, or for the key of a session the key that made its
   * sign-in link. Undefined when this key was revoked or has expired.
   */
  maker(keyId: string, now: number): Maker | undefined {
    return this.#maker.get({ keyId, now }) as Maker | undefined;
  }

  /** The key with this hash (SHA-256 in hexadecimal digits), unless it was revoked or has expired. */
  liveKey(hash: string, now: number): KeyRow | undefined {
    return this.#live.get({ hash: Buffer.from(hash, "hex"), now }) as KeyRow | undefined;
  }

  /** The key with this id, unless it was revoked or has expired. */
  liveKeyById(keyId: string, now: number): KeyRow | undefined {
    return this.#liveById.get({ keyId, now }) as KeyRow | undefined;
  }

  /** The team's live keys, oldest first. */
  liveKeys(teamId: string, now: number): KeyRow[] {
    return this.#ofTeam.all({ teamId, now }) as unknown as KeyRow[];
  }

  /** Removes the rows of keys that expired or were revoked by these times. */
  removeKeys(ended: { expired: number; revoked: number }): void {
    this.#forget.run(ended);
  }

  /** Whether `madeId` was made with `keyId`, directly or indirectly. */
  isMadeWith(madeId: string, keyId: string): boolean {
    return this.#isMadeWith.get({ madeId, keyId }) !== undefined;
  }

  isLive(keyId: string, now: number): boolean {
    return this.#isLive.get({ keyId, now }) !== undefined;
  }

  /** false: it is live, or has no row. */
  hasEnded(keyId: string, now: number): boolean {
    return this.#hasEnded.get({ keyId, now }) !== undefined;
  }

  /** Keys that have ended count as long as their rows are kept. */
  hasKeys(teamName: string): boolean {
    return this.#hasKeys.get(teamName) !== undefined;
  }

  keys(): KeyRow[] {
    return this.#keys.all() as unknown as KeyRow[];
  }

  /**
   * Revokes the key and, directly or indirectly, all that it made; with `keepMade`, those count as made by its own maker and
   * stay. Returns the ids of the revoked keys: none when there is no such key or it is revoked already. Removes the rows of the team's
   * oldest revoked keys beyond `revokedKeysMax`.
   */
  revoke(keyId: string, atMs: number, keepMade = false): string[] {
    return this.transact(() => {
      if (keepMade) this.#passOn.run({ keyId });
      const team = this.#teamOf.get(keyId) as { id: string } | undefined;
      const revoked = this.#revoke.all({ keyId, atMs }).map(({ id }) => String(id));
      if (team !== undefined && revoked.length > 0) this.#trim.run(team.id);
      return revoked;
    });
  }

  /** Writes the last use of several keys in one unsynced commit: a sync each second would delay requests. */
  noteUsed(times: Iterable<[keyId: string, atMs: number]>): void {
    const note = () => {
      for (const [keyId, atMs] of times) this.#used.run(atMs, keyId);
    };
    withoutSync(this.#database, () => transact(this.#database, note));
  }
}
