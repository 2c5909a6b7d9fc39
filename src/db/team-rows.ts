/** Team and API key rows. A key itself is never here, only its SHA-256. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact } from "./database.ts";

export interface TeamRow {
  id: string;
  name: string;
  createdAt: number;
}

/** Times are epoch milliseconds. */
export interface KeyRow {
  id: string;
  teamId: string;
  team: string;
  label: string;
  createdAt: number;
  revokedAt: number | null;
  lastUsedAt: number | null;
}

const keySelection = `k.id, k.team_id AS teamId, t.name AS team, k.label, k.created_at AS createdAt,
  k.revoked_at AS revokedAt, k.last_used_at AS lastUsedAt FROM api_keys k JOIN teams t ON t.id = k.team_id`;

export class TeamRows {
  readonly #database: Database;
  readonly #byName: StatementSync;
  readonly #insert: StatementSync;
  readonly #insertKey: StatementSync;
  readonly #live: StatementSync;
  readonly #keys: StatementSync;
  readonly #revoke: StatementSync;
  readonly #used: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#byName = database.prepare("SELECT id, name, created_at AS createdAt FROM teams WHERE name = ?");
    this.#insert = database.prepare("INSERT INTO teams (id, name, created_at) VALUES (:id, :name, :createdAt)");
    this.#insertKey = database.prepare(
      "INSERT INTO api_keys (id, team_id, label, hash, created_at) VALUES (?, ?, ?, ?, ?)",
    );
    this.#live = database.prepare(`SELECT ${keySelection} WHERE k.hash = ? AND k.revoked_at IS NULL`);
    this.#keys = database.prepare(`SELECT ${keySelection} ORDER BY t.name, k.created_at, k.id`);
    this.#revoke = database.prepare("UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL");
    this.#used = database.prepare("UPDATE api_keys SET last_used_at = ? WHERE id = ?");
  }

  named(name: string): TeamRow | undefined {
    return this.#byName.get(name) as TeamRow | undefined;
  }

  /** The team of that name, made if there is none. */
  ensure(row: TeamRow): TeamRow {
    return transact(this.#database, () => {
      const found = this.named(row.name);
      if (found === undefined) this.#insert.run({ ...row });
      return found ?? row;
    });
  }

  insertKey(key: { id: string; teamId: string; label: string; hash: Uint8Array; createdAt: number }): void {
    this.#insertKey.run(key.id, key.teamId, key.label, key.hash, key.createdAt);
  }

  /** The key with this hash, unless it was revoked. */
  liveKey(hash: Uint8Array): KeyRow | undefined {
    return this.#live.get(hash) as KeyRow | undefined;
  }

  keys(): KeyRow[] {
    return this.#keys.all() as unknown as KeyRow[];
  }

  /** False when there is no such key or it was revoked before. */
  revoke(keyId: string, atMs: number): boolean {
    return this.#revoke.run(atMs, keyId).changes === 1;
  }

  noteUsed(times: Iterable<[keyId: string, atMs: number]>): void {
    transact(this.#database, () => {
      for (const [keyId, atMs] of times) this.#used.run(atMs, keyId);
    });
  }
}
