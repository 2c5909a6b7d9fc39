/**
 * One daemon per data folder. The lock is an exclusive transaction on a small SQLite file: the kernel releases it when the
 * process ends in any way, and no pid file has to be trusted.
 */
import { closeSync, constants, ftruncateSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";

/** The journal is in memory, because the disk may be full. */
const takeLock = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE";
const sqliteBusy = 5;
const pidLength = 10;

export interface DataLock {
  release(): void;
}

/** Throws an Error that names the holder when another daemon has the folder. */
export function lockData(dataDir: string): DataLock {
  const database = openLock(dataDir);
  const pidPath = join(dataDir, "daemon.pid");
  try {
    database.exec(takeLock);
  } catch (cause) {
    database.close();
    if (!isBusy(cause)) throw new Error(`the data folder ${dataDir} cannot be locked: ${String(cause)}`, { cause });
    throw new Error(`the data folder ${dataDir} is in use by a running server${holder(pidPath)}`, { cause });
  }
  writePid(pidPath);
  return { release: () => database.close() };
}

/** Whether a daemon holds the lock. */
export function isLocked(dataDir: string): boolean {
  const database = openLock(dataDir);
  try {
    database.exec(`${takeLock}; ROLLBACK`);
    return false;
  } catch (error) {
    if (isBusy(error)) return true;
    throw error;
  } finally {
    database.close();
  }
}

function openLock(dataDir: string): DatabaseSync {
  return new DatabaseSync(join(dataDir, "daemon.lock"), { timeout: 0 });
}

/** The upper bytes of the code are SQLite's extended code. */
function isBusy(error: unknown): boolean {
  return (((error as { errcode?: number }).errcode ?? 0) & 0xff) === sqliteBusy;
}

/** Overwrites in place with a fixed length, which also works on a full disk. */
function writePid(path: string): void {
  const file = openSync(path, constants.O_WRONLY | constants.O_CREAT, 0o600);
  try {
    writeSync(file, `${String(process.pid).padEnd(pidLength)}\n`, 0);
    ftruncateSync(file, pidLength + 1); // a damaged file may have been longer
  } finally {
    closeSync(file);
  }
}

function holder(pidPath: string): string {
  try {
    return ` (pid ${readFileSync(pidPath, "utf8").trim()})`;
  } catch {
    return "";
  }
}
