/**
 * Whether this machine has room for one VM more, by what it really has left: a capsule's memory is a private copy of its
 * template's, made page by page, so most of what is promised to capsules is never taken.
 */
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { requireSpace } from "../disk/files.ts";
import { memoryLeft } from "./memory.ts";

/** VMs that are being ended are waited for so long at most. */
const longestWaitMs = 5_000;

/** What a capsule takes soon after its start. */
const newCapsule = { diskBytes: 16 << 20, memoryBytes: 64 << 20 };

export interface AdmissionOptions {
  /** The data folder. */
  folder: string;
  /** Memory that is never given to a new VM. */
  reserveBytes: number;
  /** Bytes that could be taken without pressing others out. */
  availableBytes?: () => number;
}

export class Admission {
  readonly #options: AdmissionOptions;
  /** VMs under way, whose memory is not yet missing. */
  #coming = 0;
  /** VMs that are being ended, whose memory is not yet back. */
  readonly #going = new Set<Promise<unknown>>();

  constructor(options: AdmissionOptions) {
    this.#options = options;
  }

  /**
   * Throws CapsuleError("no_capacity") when the machine has no memory or disk left for another capsule of this size; before
   * that it waits, for some seconds at most, for the memory of VMs that are being ended. `promised`: VMs that will come, and
   * wait for their turn.
   */
  async admit(memoryMb: number, promised = 0): Promise<void> {
    const { folder, reserveBytes, availableBytes = memoryLeft } = this.#options;
    try {
      await requireSpace(folder, newCapsule.diskBytes, "another capsule");
    } catch (error) {
      if (!(error instanceof CapsuleError)) throw error;
      const { message, details } = error;
      throw new CapsuleError("no_capacity", `the host's disk is full: ${message}`, {
        cause: error,
        ...asDetails(details),
      });
    }
    const lateMs = performance.now() + longestWaitMs;
    for (;;) {
      const freeBytes = availableBytes() - reserveBytes - (this.#coming + promised) * newCapsule.memoryBytes;
      if (freeBytes >= Math.min(memoryMb * 2 ** 20, newCapsule.memoryBytes)) return;
      const leftMs = lateMs - performance.now();
      if (this.#going.size === 0 || leftMs <= 0) break;
      await Promise.race([delay(leftMs, undefined, { ref: false }), ...this.#going]).catch(() => {});
    }
    throw new CapsuleError("no_capacity", "the host has no memory left for another capsule; try again when some ended");
  }

  /** Until `ending` has settled, whoever finds no room waits for it. */
  async trackRelease(ending: Promise<void>): Promise<void> {
    this.#going.add(ending);
    try {
      await ending;
    } finally {
      this.#going.delete(ending);
    }
  }

  /** Counts a VM as coming until `starting` has settled. */
  async during<T>(starting: () => Promise<T>): Promise<T> {
    this.#coming += 1;
    try {
      return await starting();
    } finally {
      this.#coming -= 1;
    }
  }
}

function asDetails<T>(details: T | undefined): { details?: T } {
  return details === undefined ? {} : { details };
}
