/**
 * Whether the host has memory and disk for one more VM, by what is available now and not by what was promised: a capsule's
 * memory is copied from its template page by page on write, so most of it is never used. A resumed capsule gets the pages
 * that it had written back at once, so they are required to be free.
 *
 *      under way   every new start has to fit beside the needs of these
 *      waiting     in line for a slot. A new start fits beside all of them, or its owner's fit together into an equal share of
 *                  the memory that is left: the line of one owner holds up no other's start. A waiting start is refused when
 *                  its turn comes and the memory is gone
 *      loaded      its agent is waited for. A resume has its pages, which are missing from what is available, and counts no
 *                  more. A new capsule copies its pages on write, so its need counts until it runs
 */
import { setTimeout as delay } from "node:timers/promises";
import { Counts } from "../../counts.ts";
import { countPages } from "../../vmm/memory/memory-diff.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { DiskSpace } from "../disk/disk-space.ts";
import { type Admitted, serviceOwner } from "../host.ts";
import type { HostMemory } from "./host-memory.ts";
import { Readiness, type ReadinessCheck } from "./readiness.ts";

/** Longest wait for the memory of VMs that are being ended. */
const longestWaitMs = 5_000;

/** Used by a capsule soon after its start. */
const newCapsule = { diskBytes: 16 << 20, memoryBytes: 64 << 20 };
/** QEMU without guest memory: 33 MiB under emulation, 17 MiB with KVM, and some of it grows with the guest. */
const processBytes = 40 << 20;
/** A private page has an entry of 8 bytes in the page table of QEMU, and under KVM a second one in that of the guest. */
const bytesPerPage = 4_096 + 2 * 8;

/** Memory that a new capsule needs. */
export function createNeed(memoryMb: number): number {
  return Math.min(memoryMb * 2 ** 20, newCapsule.memoryBytes);
}

/** Memory that a paused capsule needs whose checkpoint has this many pages. A page of zeros costs as much as any other. */
export function resumeNeed(memoryMb: number, pages: number): number {
  return Math.max(createNeed(memoryMb), processBytes + pages * bytesPerPage);
}

/** The same, by the memory diff at this path. A file that cannot be used is left to the restore, which says why. */
export async function restoreNeed(memoryMb: number, diff: string): Promise<number> {
  return resumeNeed(memoryMb, await countPages(diff).catch(() => 0));
}

export interface AdmissionOptions {
  space: Pick<DiskSpace, "reserve" | "orReclaim">;
  memory: Pick<HostMemory, "spareBytes">;
  /** Files without which no VM starts, as sentences about those that are missing. */
  missing: ReadinessCheck;
}

export class Admission {
  readonly #options: AdmissionOptions;
  readonly #files: Readiness;
  /** Needs of the starts under way. Part of it may be taken already and be missing from what is available. */
  #startingBytes = 0;
  /** Needs of the starts that wait for their turn, by owner. */
  readonly #waiting = new Counts();
  /** VMs that are being ended and have not freed their memory yet. */
  readonly #ending = new Set<Promise<unknown>>();

  constructor(options: AdmissionOptions) {
    this.#options = options;
    this.#files = new Readiness([options.missing]);
  }

  /**
   * As `admit`, for a new capsule, which may be tried later. Throws CapsuleError("agent_error") when the host lacks a file that
   * VMs start from.
   */
  async admitNew(owner: string, memoryMb: number, promised = 0): Promise<Admitted> {
    const missing = await this.#files.reasons();
    if (missing.length > 0) {
      const message = "the host cannot start a VM now: a file that VMs start from is missing; /healthz names it";
      throw new CapsuleError("agent_error", message, { cause: new Error(missing.join("; ")) });
    }
    return this.admit(owner, createNeed(memoryMb), promised);
  }

  /** As `admit`, for a saved capsule, whose pages are there when it is loaded: the need counts until then. */
  admitSaved(owner: string, needBytes: number, promised = 0): Promise<Admitted> {
    return this.#admit(owner, needBytes, promised, true);
  }

  /**
   * Counts the need of a VM until the result is disposed of, which is to be done when it has started or failed to. Throws
   * CapsuleError("no_capacity") when the host has too little memory or disk left for it; before that it waits up to 5 s for
   * VMs that are being ended. `promised`: further new capsules that will be started. The disk of a start that waits for its turn
   * is not reserved yet: the line of one owner holds up no other's. It is reserved until the VM is loaded.
   */
  admit(owner: string, needBytes: number, promised = 0): Promise<Admitted> {
    return this.#admit(owner, needBytes, promised, false);
  }

  async #admit(owner: string, needBytes: number, promised: number, isLoadedWhole: boolean): Promise<Admitted> {
    await this.#requireDisk();
    const lateMs = performance.now() + longestWaitMs;
    for (;;) {
      if (this.#hasMemory(owner, needBytes, promised)) return this.#count(owner, needBytes, isLoadedWhole);
      const leftMs = lateMs - performance.now();
      if (this.#ending.size === 0 || leftMs <= 0) break;
      await Promise.race([delay(leftMs, undefined, { ref: false }), ...this.#ending]).catch(() => {});
    }
    throw noMemory();
  }

  #count(owner: string, needBytes: number, isLoadedWhole: boolean): Admitted {
    let [waitingBytes, startingBytes] = [needBytes, 0];
    const disk = new DisposableStack();
    this.#waiting.add(owner, needBytes);
    const endStarting = () => {
      this.#startingBytes -= startingBytes;
      startingBytes = 0;
    };
    return {
      begin: () => {
        if (this.#leftBytes(0) < waitingBytes) throw noMemory();
        disk.use(this.#reserveDisk());
        this.#waiting.subtract(owner, waitingBytes);
        this.#startingBytes += waitingBytes;
        [waitingBytes, startingBytes] = [0, waitingBytes];
      },
      loaded: () => {
        if (isLoadedWhole) endStarting();
        disk.dispose();
      },
      [Symbol.dispose]: () => {
        this.#waiting.subtract(owner, waitingBytes);
        waitingBytes = 0;
        endStarting();
        disk.dispose();
      },
    };
  }

  /** Sentences about everything that is short or missing for the smallest capsule now, without waiting. */
  async shortages(): Promise<string[]> {
    const disk = await this.#requireDisk().then(
      () => [],
      (error: Error) => [error.message],
    );
    const memory = this.#hasMemory(serviceOwner, newCapsule.memoryBytes, 0) ? [] : [noMemory().message];
    return [...disk, ...memory, ...(await this.#files.reasons())];
  }

  async #requireDisk(): Promise<void> {
    const { space } = this.#options;
    try {
      await space.orReclaim(() => space.reserve(newCapsule.diskBytes, "another capsule")[Symbol.dispose]());
    } catch (error) {
      throw asNoCapacity(error);
    }
  }

  #reserveDisk(): Disposable {
    try {
      return this.#options.space.reserve(newCapsule.diskBytes, "another capsule");
    } catch (error) {
      throw asNoCapacity(error);
    }
  }

  #hasMemory(owner: string, needBytes: number, promised: number): boolean {
    const leftBytes = this.#leftBytes(promised);
    if (this.#waiting.sum + needBytes <= leftBytes) return true;
    const own = this.#waiting.of(owner);
    const owners = this.#waiting.size + (own === 0 ? 1 : 0);
    return own + needBytes <= leftBytes / owners;
  }

  /** Beyond the needs of the starts under way. */
  #leftBytes(promised: number): number {
    return this.#options.memory.spareBytes() - this.#startingBytes - promised * newCapsule.memoryBytes;
  }

  /** Lets `admit` wait for the memory of a VM until `ending` has settled. */
  async trackRelease(ending: Promise<void>): Promise<void> {
    this.#ending.add(ending);
    try {
      await ending;
    } finally {
      this.#ending.delete(ending);
    }
  }
}

/** The error of an admission for a lack of disk; another error as it is. */
function asNoCapacity(error: unknown): unknown {
  if (!(error instanceof CapsuleError)) return error;
  const { message, details } = error;
  return new CapsuleError("no_capacity", `the host's disk is full: ${message}`, {
    cause: error,
    ...asDetails(details),
  });
}

function noMemory(): CapsuleError {
  const message = "the host has no memory left for another capsule; try again when some ended";
  return new CapsuleError("no_capacity", message);
}

function asDetails<T>(details: T | undefined): { details?: T } {
  return details === undefined ? {} : { details };
}
