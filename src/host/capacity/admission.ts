/**
 * Whether the host has memory and disk for one more VM, by what is available now and not by what was promised: a capsule's
 * memory is copied from its template page by page on write, so most of it is never used.
 */
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { requireSpace } from "../disk/files.ts";
import { memoryLeft } from "./memory.ts";

/** Longest wait for the memory of VMs that are being ended. */
const longestWaitMs = 5_000;

/** Used by a capsule soon after its start. */
const newCapsule = { diskBytes: 16 << 20, memoryBytes: 64 << 20 };

export interface AdmissionOptions {
  /** The data folder. */
  folder: string;
  /** Memory kept free. */
  reserveBytes: number;
  /** Bytes that are available without swapping. */
  availableBytes?: () => number;
}

export class Admission {
  readonly #options: AdmissionOptions;
  /** VMs that are being started and have not taken their memory yet. */
  #starting = 0;
  /** VMs that are being ended and have not freed their memory yet. */
  readonly #ending = new Set<Promise<unknown>>();

  constructor(options: AdmissionOptions) {
    this.#options = options;
  }

  /**
   * Throws CapsuleError("no_capacity") when the host has no memory or disk left for another capsule of this size; before that
   * it waits up to 5 s for VMs that are being ended. `promised`: further VMs that will be started.
   */
  async admit(memoryMb: number, promised = 0): Promise<void> {
    await this.#requireDisk();
    const lateMs = performance.now() + longestWaitMs;
    for (;;) {
      if (this.#hasMemory(memoryMb, promised)) return;
      const leftMs = lateMs - performance.now();
      if (this.#ending.size === 0 || leftMs <= 0) break;
      await Promise.race([delay(leftMs, undefined, { ref: false }), ...this.#ending]).catch(() => {});
    }
    throw noMemory();
  }

  /** What is short for the smallest capsule now, as sentences, without waiting. */
  async shortages(): Promise<string[]> {
    const disk = await this.#requireDisk().then(
      () => [],
      (error: Error) => [error.message],
    );
    return this.#hasMemory(newCapsule.memoryBytes / 2 ** 20, 0) ? disk : [...disk, noMemory().message];
  }

  async #requireDisk(): Promise<void> {
    try {
      await requireSpace(this.#options.folder, newCapsule.diskBytes, "another capsule");
    } catch (error) {
      if (!(error instanceof CapsuleError)) throw error;
      const { message, details } = error;
      throw new CapsuleError("no_capacity", `the host's disk is full: ${message}`, {
        cause: error,
        ...asDetails(details),
      });
    }
  }

  #hasMemory(memoryMb: number, promised: number): boolean {
    const { reserveBytes, availableBytes = memoryLeft } = this.#options;
    const freeBytes = availableBytes() - reserveBytes - (this.#starting + promised) * newCapsule.memoryBytes;
    return freeBytes >= Math.min(memoryMb * 2 ** 20, newCapsule.memoryBytes);
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

  /** Counts a VM as being started until `starting` has settled. */
  async during<T>(starting: () => Promise<T>): Promise<T> {
    this.#starting += 1;
    try {
      return await starting();
    } finally {
      this.#starting -= 1;
    }
  }
}

function noMemory(): CapsuleError {
  const message = "the host has no memory left for another capsule; try again when some ended";
  return new CapsuleError("no_capacity", message);
}

function asDetails<T>(details: T | undefined): { details?: T } {
  return details === undefined ? {} : { details };
}
