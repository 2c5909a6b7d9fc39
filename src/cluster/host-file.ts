/**
 * `host.json` of the data folder: under which name it has joined which cluster, and where the folder lay then. A folder that has left has it
 * as `left.json`.
 */
import { createHash, randomBytes } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  futimesSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  utimesSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import type { Log } from "../log.ts";
import type { Freshness } from "./catalog.ts";

export interface HostFile {
  cluster: string;
  name: string;
  /** Random, and the folder's own: no other folder joins under its name. */
  nonce: string;
  /** The number of the last join. A daemon that cannot reach the database starts with it. */
  epoch: number;
  /** The cluster's limits as last read. */
  limits: Record<string, number>;
  /** As `placeOf` at the last join; undefined: a program of before has written the file. */
  place?: string;
  /** The other hosts as last heard of. */
  hosts?: KnownHost[];
  /** Random: the folder, that of the last host, was whole when its leave began, and the cluster that has the same text has ended with it. */
  ending?: string | undefined;
}

/** A host, and where its peer port is. */
export interface KnownHost {
  name: string;
  address: string;
  port: number;
  epoch: number;
}

const fileName = "host.json";
export const leftName = "left.json";
/** The database is not trusted to name few. */
const [hostsMax, textMax] = [200, 255];

/** Undefined: the folder has not joined a cluster. Throws when the file is damaged. */
export function readHostFile(dataDir: string): HostFile | undefined {
  const path = join(dataDir, fileName);
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  try {
    const { cluster, name, nonce, epoch, limits, place, hosts, ending } = JSON.parse(text) as HostFile;
    const isWhole = [cluster, name, nonce].every((each) => typeof each === "string") && Number.isSafeInteger(epoch);
    const known = Array.isArray(hosts) ? hosts.filter(isKnownHost).slice(0, hostsMax) : [];
    const more = {
      ...(typeof place === "string" ? { place } : {}),
      ...(known.length > 0 ? { hosts: known } : {}),
      ...(typeof ending === "string" ? { ending } : {}),
    };
    if (isWhole && typeof limits === "object" && limits !== null)
      return { cluster, name, nonce, epoch, limits, ...more };
  } catch {}
  throw new Error(`${path} is damaged: bring it back from a backup of this folder`);
}

export function newNonce(): string {
  return randomBytes(16).toString("hex");
}

function isKnownHost(of: unknown): of is KnownHost {
  const { name, address, port, epoch } = (of ?? {}) as Partial<KnownHost>;
  const isShort = [name, address].every((each) => typeof each === "string" && each !== "" && each.length <= textMax);
  return isShort && Number.isSafeInteger(port) && port! > 0 && port! < 65_536 && Number.isSafeInteger(epoch);
}

/** Keeps the other hosts for a start without the database. Writes nothing while they stay as they are. */
export function hostsKeptIn(dataDir: string, log: Pick<Log, "warn">): (hosts: readonly KnownHost[]) => void {
  let kept = JSON.stringify(readHostFile(dataDir)?.hosts ?? []);
  return (found) => {
    const hosts = found
      .map(({ name, address, port, epoch }) => ({ name, address, port, epoch }))
      .filter(isKnownHost)
      .sort((a, b) => (a.name < b.name ? -1 : 1))
      .slice(0, hostsMax);
    const text = JSON.stringify(hosts);
    if (text === kept) return;
    kept = text; // a folder that cannot be written is not written to each second
    try {
      const file = readHostFile(dataDir);
      if (file !== undefined) writeHostFile(dataDir, { ...file, hosts });
    } catch (error) {
      log.warn({ err: error }, "the other hosts could not be kept for a start without the database");
    }
  };
}

/** The file is on disk when this returns, with the time that it had. */
export function writeHostFile(dataDir: string, host: HostFile): void {
  const path = join(dataDir, fileName);
  const readAt = statSync(path, { throwIfNoEntry: false })?.mtime ?? new Date(0);
  const made = openSync(`${path}.new`, "w", 0o600);
  try {
    writeSync(made, `${JSON.stringify(host, undefined, 2)}\n`);
    futimesSync(made, readAt, readAt);
    fsyncSync(made);
  } finally {
    closeSync(made);
  }
  renameSync(`${path}.new`, path);
  sync(dataDir);
}

function sync(dataDir: string): void {
  const folder = openSync(dataDir, "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** The folder is no host's any longer, durably when this returns. */
export function markLeft(dataDir: string): void {
  renameSync(join(dataDir, fileName), join(dataDir, leftName));
  sync(dataDir);
}

/** The folder has left a cluster, and was not started alone since. */
export function hasLeft(dataDir: string): boolean {
  return existsSync(join(dataDir, leftName));
}

/** The time of the file is when teams and keys were last read. */
export function freshnessOf(dataDir: string): Freshness {
  const path = join(dataDir, fileName);
  return {
    ageMs: () => Math.max(0, Date.now() - statSync(path).mtimeMs),
    note: () => utimesSync(path, new Date(), new Date()),
  };
}

/** The same for a folder as long as it is neither copied nor moved: a hash of the machine's id, the file system and the inode. */
export function placeOf(dataDir: string): string {
  const { dev, ino } = statSync(dataDir);
  return createHash("sha256").update(`${machineId()} ${dev} ${ino}`).digest("hex").slice(0, 32);
}

function machineId(): string {
  try {
    return readFileSync("/etc/machine-id", "latin1").trim();
  } catch {
    return "";
  }
}
