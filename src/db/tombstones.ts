/** Rows of capsules that were destroyed: their ids are not used again, and their folders are removed. */
import type { StatementSync } from "node:sqlite";
import { type Database, withoutSync } from "./database.ts";

/** Tombstones that are kept; some 10 MiB of the database. */
const tombstonesMax = 100_000;
/** More than a server destroys between two calls, and some milliseconds of its time. */
const forgottenAtOnce = 5_000;

export class Tombstones {
  readonly #database: Database;
  readonly #add: StatementSync;
  readonly #has: StatementSync;
  readonly #forget: StatementSync;
  readonly #since: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#add = database.prepare("INSERT OR IGNORE INTO tombstones (id, destroyed_at) VALUES (?, ?)");
    this.#has = database.prepare("SELECT 1 FROM tombstones WHERE id = ?");
    this.#since = database.prepare("SELECT id FROM tombstones WHERE destroyed_at >= ? AND id > ? ORDER BY id LIMIT ?");
    this.#forget = database.prepare(
      `DELETE FROM tombstones WHERE id IN (
         SELECT id FROM tombstones INDEXED BY tombstones_by_time
         WHERE destroyed_at < MAX(:beforeMs, COALESCE(
             (SELECT destroyed_at + 1 FROM tombstones ORDER BY destroyed_at DESC LIMIT 1 OFFSET :most), :beforeMs))
           AND destroyed_at < (SELECT MAX(destroyed_at) FROM tombstones)
           AND id NOT IN (SELECT value FROM json_each(:folders)) AND id NOT IN (SELECT id FROM capsules)
         ORDER BY destroyed_at LIMIT ${forgottenAtOnce})`,
    );
  }

  /** The first one of an id stays. */
  add(id: string, atMs: number): void {
    this.#add.run(id, atMs);
  }

  has(id: string): boolean {
    return this.#has.get(id) !== undefined;
  }

  /** Ids of a page, in their order, behind `after`. */
  since(atMs: number, after: string, most: number): string[] {
    return (this.#since.all(atMs, after, most) as { id: string }[]).map(({ id }) => id);
  }

  /**
   * Removes tombstones in one unsynced commit, a bounded number: those from before `beforeMs`, and the oldest beyond `most`, but for
   * those of capsules that have a row or a folder, and the newest one, for `hasAny`.
   */
  forget(beforeMs: number, folders: readonly string[], most = tombstonesMax): void {
    const parameters = { beforeMs, most, folders: JSON.stringify(folders) };
    withoutSync(this.#database, () => this.#forget.run(parameters));
  }
}
