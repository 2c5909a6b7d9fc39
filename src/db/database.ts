/**
 * Opens the one database file. node:sqlite is synchronous on purpose (docs/adr/0002-sqlite-synchronously.md): a read costs
 * microseconds, a commit one fdatasync, and between two awaits the rows cannot change under our feet.
 */
import { chmodSync, closeSync, fdatasyncSync, fstatSync, openSync, writeSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { migrate } from "./migrations.ts";

export type Database = DatabaseSync;

/** SQLite empties the log at every 1 000 pages of 4 KiB, as far as readers and the disk let it. */
const logBytes = 8 << 20;

/**
 * Opens (and creates, mode 0600) the database at `path` and brings its schema up to date.
 * Throws when the file was written by a newer program.
 */
export function openDatabase(path: string): Database {
  const database = new DatabaseSync(path, { timeout: 5_000 });
  if (path !== ":memory:") chmodSync(path, 0o600);
  database.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON");
  migrate(database);
  if (path !== ":memory:") reserveLog(database, `${path}-wal`);
  return database;
}

/**
 * Makes the write-ahead log as long as it will become. It is written from its beginning again and again, so on a full
 * disk records can still change, and a capsule can be destroyed to make room.
 */
function reserveLog(database: Database, path: string): void {
  database.exec("BEGIN IMMEDIATE"); // nobody else appends meanwhile
  const log = openSync(path, "r+");
  try {
    const { size } = fstatSync(log);
    if (size < logBytes) writeSync(log, Buffer.alloc(logBytes - size), 0, logBytes - size, size);
    fdatasyncSync(log);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
  } finally {
    closeSync(log);
    database.exec("ROLLBACK");
  }
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
