/**
 * One daemon per data folder. The lock is an exclusive transaction on a small SQLite file: the kernel lets go of it when
 * the process ends, however it ends, and no pid has to be believed.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";

export interface DataLock {
  release(): void;
}

/** Throws an Error that names the holder when another daemon has the folder. */
export function lockData(dataDir: string): DataLock {
  const database = new DatabaseSync(join(dataDir, "daemon.lock"), { timeout: 0 });
  const pidPath = join(dataDir, "daemon.pid");
  try {
    database.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE");
  } catch (cause) {
    database.close();
    throw new Error(`the data folder ${dataDir} is in use by a running server${holder(pidPath)}`, { cause });
  }
  writeFileSync(pidPath, `${process.pid}\n`, { mode: 0o600 });
  return { release: () => database.close() };
}

/** True when a daemon has the folder now. */
export function isLocked(dataDir: string): boolean {
  try {
    lockDataBriefly(dataDir);
    return false;
  } catch {
    return true;
  }
}

function lockDataBriefly(dataDir: string): void {
  const database = new DatabaseSync(join(dataDir, "daemon.lock"), { timeout: 0 });
  try {
    database.exec("BEGIN EXCLUSIVE; ROLLBACK");
  } finally {
    database.close();
  }
}

function holder(pidPath: string): string {
  try {
    return ` (pid ${readFileSync(pidPath, "utf8").trim()})`;
  } catch {
    return "";
  }
}
