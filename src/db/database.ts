/**
 * Opens the one database file. node:sqlite is synchronous on purpose (docs/adr/0002-sqlite.md): a read costs
 * microseconds, a commit one fdatasync, and between two awaits the rows cannot change under our feet.
 */
import { chmodSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { migrate } from "./migrations.ts";

export type Database = DatabaseSync;

/**
 * Opens (and creates, mode 0600) the database at `path` and brings its schema up to date.
 * Throws when the file was written by a newer program.
 */
export function openDatabase(path: string): Database {
  const database = new DatabaseSync(path, { timeout: 5_000 });
  if (path !== ":memory:") chmodSync(path, 0o600);
  database.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON");
  migrate(database);
  return database;
}

/** Runs `work` in one transaction: all of it is durable when this returns, none of it when it throws. */
export function transact<T>(database: Database, work: () => T): T {
  database.exec("BEGIN IMMEDIATE");
  try {
    const result = work();
    database.exec("COMMIT");
    return result;
  } catch (error) {
    database.exec("ROLLBACK");
    throw error;
  }
}
