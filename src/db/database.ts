/**
 * Opens the one database file. node:sqlite is synchronous on purpose (docs/adr/0002-sqlite-synchronously.md): a read costs
 * microseconds, a commit one fdatasync, and between two awaits the rows cannot change under our feet.
 */

import { chmodSync, closeSync, fdatasyncSync, fstatSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { migrate } from "./migrations.ts";

export type Database = DatabaseSync;

/** How long a statement waits for another process, which writes one row at most. */
const busyMs = 5_000;
/** How long opening waits for another process, which may be making, repairing or closing the file on a slow disk. */
const openingMs = 30_000;
const longestPauseMs = 20;
const sqliteBusy = 5;

/** SQLite empties the log at every 1 000 pages of 4 KiB, as far as readers and the disk let it. */
const logBytes = 8 << 20;

/**
 * Opens (and creates, mode 0600) the database at `path` and brings its schema up to date.
 * Throws when the file was written by a newer program.
 */
export function openDatabase(path: string): Database {
  const database = new DatabaseSync(path, { timeout: 0 });
  try {
    if (path !== ":memory:") {
      chmodSync(path, 0o600);
      useWriteAheadLog(database);
    }
    database.exec(`PRAGMA busy_timeout = ${openingMs}; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON`);
    migrate(database);
    if (path !== ":memory:") reserveLog(database, `${path}-wal`);
    database.exec(`PRAGMA busy_timeout = ${busyMs}`);
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/**
 * The file keeps its mode, so this changes it once in its life. SQLite's own waiting is no use for that: two processes that
 * both have the new file open would wait for each other until one gives up. So each lets go, and tries again.
 */
function useWriteAheadLog(database: Database): void {
  const deadline = performance.now() + openingMs;
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (;;) {
    try {
      const { journal_mode: mode } = database.prepare("PRAGMA journal_mode").get() as { journal_mode: string };
      if (mode !== "wal") database.exec("PRAGMA journal_mode = WAL");
      return;
    } catch (error) {
      if (!isBusy(error) || performance.now() > deadline) throw error;
    }
    Atomics.wait(pause, 0, 0, 1 + Math.random() * longestPauseMs);
  }
}

/** SQLite says more of the reason in the upper bytes. */
function isBusy(error: unknown): boolean {
  return (((error as { errcode?: number }).errcode ?? 0) & 0xff) === sqliteBusy;
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

/**
 * Runs `work` without waiting for the disk. What it writes outlives this process at once, but a power cut only together with
 * the next synced commit: for what need not outlive the running VMs, and for notes of when something was used last. One commit in
 * a thousand pages syncs all the same, when SQLite moves its log into the file. Throws in a transaction.
 */
export function withoutSync<T>(database: Database, work: () => T): T {
  database.exec("PRAGMA synchronous = NORMAL");
  try {
    return work();
  } finally {
    database.exec("PRAGMA synchronous = FULL");
  }
}

/** Where the database of a data folder is. */
export function databasePath(dataDir: string): string {
  return join(dataDir, "capsule.db");
}

/** Runs `work` in one transaction: all of it is durable when this returns (see withoutSync), none of it when it throws. */
export function transact<T>(database: Database, work: () => T): T {
  database.exec("BEGIN IMMEDIATE");
  try {
    const result = work();
    database.exec("COMMIT");
    return result;
  } catch (error) {
    if (database.isTransaction) database.exec("ROLLBACK"); // a full disk has ended it already
    throw error;
  }
}
