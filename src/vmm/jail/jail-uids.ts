/**
 * Users for jails. Each VM has a user of its own, so that a QEMU that escaped every other wall still owns only its own
 * files. /proc tells which users are taken, not a file: a user is taken while any process runs under it, of this daemon
 * or another.
 */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { CapsuleError } from "../../wire/errors.ts";
import { isAlive } from "../process.ts";
import type { VmProcess } from "../vmm.ts";

export interface UidRange {
  first: number;
  last: number;
}

/** Minimum time between two scans of /proc for users taken by other daemons' VMs. */
const scanIntervalMs = 5_000;
/**
 * Processes that a reservation looks at, except for the first. A longer scan is continued by the next ones: a machine with 10 000
 * VMs has as many processes, and looking at them takes 40 ms.
 */
const scannedAtOnce = 1_000;
const attempts = 1_000;

export class JailUids {
  /** Group of all jails; may read the files that templates share. It is never a process's user. */
  readonly readers: number;
  readonly #range: UidRange;
  /** Null: a process is being started under this user. */
  readonly #held = new Map<number, VmProcess | null>();
  /** Users of all processes, as the last complete scan has found them. */
  #others: Set<number> | undefined;
  #scan = new Set<number>();
  /** Processes that the scan under way has not looked at. */
  #pids: string[] = [];
  readonly #processes: Processes;
  #scannedMs = Number.NEGATIVE_INFINITY;

  /** The first number of the range is the readers' group, the others are users. */
  constructor(range: UidRange, processes: Processes = allProcesses) {
    this.#processes = processes;
    this.readers = range.first;
    this.#range = { first: range.first + 1, last: range.last };
  }

  /** Reserves a user that no process of this machine runs under. */
  reserve(): number {
    const { first, last } = this.#range;
    this.#rescan();
    for (let attempt = 0; attempt < attempts; attempt++) {
      const uid = first + Math.floor(Math.random() * (last - first + 1));
      if (this.#others?.has(uid) || this.#isHeld(uid)) continue;
      this.#held.set(uid, null);
      return uid;
    }
    throw new CapsuleError("no_capacity", `all ${last - first + 1} users reserved for VMs are taken`);
  }

  /** After a start: the user is free again when this process has ended. */
  assign(uid: number, process: VmProcess): void {
    this.#held.set(uid, process);
  }

  /** After a failed start or an ended program: no process runs under the user any more. */
  release(uid: number): void {
    this.#held.delete(uid);
  }

  /** Keeps the user of an earlier daemon's process taken until that process ends. */
  adopt(process: VmProcess): void {
    const uid = uidOf(process.pid);
    if (uid !== null && uid >= this.#range.first && uid <= this.#range.last) this.#held.set(uid, process);
  }

  holds(process: VmProcess): boolean {
    return isUnderJailUid({ first: this.readers, last: this.#range.last }, process);
  }

  #isHeld(uid: number): boolean {
    const holder = this.#held.get(uid);
    return holder === null || (holder !== undefined && isAlive(holder));
  }

  #rescan(): void {
    if (this.#pids.length === 0) {
      const nowMs = performance.now();
      if (nowMs - this.#scannedMs < scanIntervalMs) return;
      this.#scannedMs = nowMs;
      this.#pids = this.#processes.list();
    }
    const count = this.#others === undefined ? this.#pids.length : scannedAtOnce;
    for (const pid of this.#pids.splice(-count)) {
      const owner = this.#processes.ownerOf(pid);
      if (owner !== undefined) this.#scan.add(owner);
    }
    if (this.#pids.length > 0) return;
    this.#others = this.#scan;
    this.#scan = new Set();
  }
}

/**
 * True for a process whose user is reserved for jails. Together with pid and start time this identifies a VM. The
 * command line does not: a compromised QEMU can rewrite its own.
 */
export function isUnderJailUid({ first, last }: UidRange, process: VmProcess): boolean {
  const uid = uidOf(process.pid);
  return uid !== null && uid > first && uid <= last && isAlive(process);
}

/** How processes and their owners are found. */
export interface Processes {
  /** Their pids. */
  list(): string[];
  /** Undefined when the process has ended. */
  ownerOf(pid: string): number | undefined;
}

const allProcesses: Processes = {
  list: () => readdirSync("/proc").filter((entry) => /^\d+$/.test(entry)),
  ownerOf: (pid) => {
    try {
      return statSync(`/proc/${pid}`).uid;
    } catch {
      return undefined;
    }
  },
};

/** Real uid of a process; null when it has ended. */
export function uidOf(pid: number): number | null {
  try {
    return Number(/^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? Number.NaN);
  } catch {
    return null;
  }
}
