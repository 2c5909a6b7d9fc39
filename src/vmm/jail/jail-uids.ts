/**
 * Users for jails: one for each VM, so that a QEMU that got out of everything else still owns nothing but its own files.
 * Which are taken is asked of the machine and not written down: whatever runs under a user has it, whoever started it.
 */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { CapsuleError } from "../../wire/errors.ts";
import { isAlive } from "../process.ts";
import type { VmProcess } from "../vmm.ts";

export interface UidRange {
  first: number;
  last: number;
}

/** Other daemons' VMs are looked for as often as this at most. */
const lookMs = 5_000;
const attempts = 1_000;

export class JailUids {
  /** Group of all jails: may read what templates share. No process runs under it as a user. */
  readonly readers: number;
  readonly #range: UidRange;
  /** Null: a start is under way. */
  readonly #held = new Map<number, VmProcess | null>();
  #others = new Set<number>();
  #scannedMs = Number.NEGATIVE_INFINITY;

  /** The first of the range is the readers' group, the others are users. */
  constructor(range: UidRange) {
    this.readers = range.first;
    this.#range = { first: range.first + 1, last: range.last };
  }

  /** A user that no process of this machine runs under, and that nobody else gets before it is given back. */
  take(): number {
    const { first, last } = this.#range;
    this.#rescan();
    for (let attempt = 0; attempt < attempts; attempt++) {
      const uid = first + Math.floor(Math.random() * (last - first + 1));
      if (this.#others.has(uid) || this.#isHeld(uid)) continue;
      this.#held.set(uid, null);
      return uid;
    }
    throw new CapsuleError("no_capacity", `no user is left for a VM: ${last - first + 1} are set aside`);
  }

  /** A start has succeeded: the user is given back when this process ends. */
  assign(uid: number, process: VmProcess): void {
    this.#held.set(uid, process);
  }

  /** A start has failed, and nothing of it is left. */
  giveBack(uid: number): void {
    this.#held.delete(uid);
  }

  /** A process of an earlier daemon: its user is taken for as long as it lives. */
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
    const nowMs = performance.now();
    if (nowMs - this.#scannedMs < lookMs) return;
    this.#scannedMs = nowMs;
    this.#others = ownersOfProcesses();
  }
}

/**
 * True for a process under a user set aside for jails. With pid and start time it is proof enough that it is a VM: what a
 * QEMU shows as its command line, the one who took it over can paint over.
 */
export function isUnderJailUid({ first, last }: UidRange, process: VmProcess): boolean {
  const uid = uidOf(process.pid);
  return uid !== null && uid > first && uid <= last && isAlive(process);
}

/** The users that own a process of this machine. */
function ownersOfProcesses(): Set<number> {
  const owners = new Set<number>();
  for (const entry of readdirSync("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      owners.add(statSync(`/proc/${entry}`).uid);
    } catch {} // it has just ended
  }
  return owners;
}

/** The real user of a process; null when it is gone. */
export function uidOf(pid: number): number | null {
  try {
    return Number(/^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? Number.NaN);
  } catch {
    return null;
  }
}
