/**
 * Opens the database file. node:sqlite is used synchronously (docs/adr/0002): a read costs microseconds, a commit one
 * fdatasync, and rows cannot change between two awaits.
 */
import { chmodSync, closeSync, fdatasyncSync, fstatSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { migrate } from "./migrations.ts";

export type Database = DatabaseSync;

/** Busy timeout of a statement: another process writes at most one row at a time. */
const busyMs = 5_000;
/** Busy timeout while opening: another process may be creating, recovering or closing the file on a slow disk. */
const openingMs = 30_000;
const longestPauseMs = 20;
const sqliteBusy = 5;

/** Size reserved for the write-ahead log, which SQLite checkpoints every 1 000 pages of 4 KiB. */
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
 * Sets WAL mode, which the file keeps. SQLite's busy handler cannot be used for that: two processes with the new file open
 * would wait for each other until the timeout. Each one backs off for a random time and tries again instead.
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

/** The lower byte is the primary result code. */
function isBusy(error: unknown): boolean {
  return (((error as { errcode?: number }).errcode ?? 0) & 0xff) === sqliteBusy;
}

/**
 * Allocates the write-ahead log at its full size. SQLite overwrites it from the beginning, so rows can still be changed on
 * a full disk, and a capsule can be destroyed to free space.
 */
function reserveLog(database: Database, path: string): void {
  database.exec("BEGIN IMMEDIATE"); // keeps other processes from appending
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
 * Runs `work` with commits that do not fsync. They survive the end of this process, and a power cut only once a later
 * synced commit has followed. For rows that need not outlive the running VMs, and for times of last use. A commit that
 * triggers a checkpoint of the log syncs all the same. Throws in a transaction.
 */
export function withoutSync<T>(database: Database, work: () => T): T {
  database.exec("PRAGMA synchronous = NORMAL");
  try {
    return work();
  } finally {
    database.exec("PRAGMA synchronous = FULL");
  }
}

/** Path of a data folder's database. */
export function databasePath(dataDir: string): string {
  return join(dataDir, "capsule.db");
}

/** Runs `work` in one transaction: durable when this returns (except in withoutSync), rolled back when it throws. */
export function transact<T>(database: Database, work: () => T): T {
  database.exec("BEGIN IMMEDIATE");
  try {
    const result = work();
    database.exec("COMMIT");
    return result;
  } catch (error) {
    if (database.isTransaction) database.exec("ROLLBACK"); // a full disk has rolled it back already
    throw error;
  }
}
