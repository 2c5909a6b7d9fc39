/** The host's memory beyond the reserve: what may be given to VMs, and whether it has run short. */
import { readFileSync } from "node:fs";
import type { Jail } from "../../vmm/jail/jail.ts";
import { memoryLeft, type Pressure, shareAvailable } from "./memory.ts";

/** Shares of the machine's memory below which nothing more is started ahead of time, and all of that is ended. */
const risingShare = 0.15;
const highShare = 0.07;
/** Per cent of the last 10 s in which some process waited for memory. */
const stallingPercent = 10;

export interface HostMemoryOptions {
  /** Memory that is kept free. */
  reserveBytes: number;
  /** Bytes that are available without swapping. */
  availableBytes?: () => number;
  /** Bytes that the control group of all VMs may still take. */
  vmRoomBytes?: () => number;
  /** Reads a file of /proc. */
  read?: (path: string) => string;
}

export class HostMemory implements Pressure {
  readonly #options: HostMemoryOptions;

  constructor(options: HostMemoryOptions) {
    this.#options = options;
  }

  /** Negative when the host is short of memory. */
  spareBytes(): number {
    const { reserveBytes, availableBytes = memoryLeft, vmRoomBytes } = this.#options;
    return Math.min(availableBytes() - reserveBytes, vmRoomBytes?.() ?? Number.POSITIVE_INFINITY);
  }

  /** Whether processes wait for memory, by the kernel's pressure stall information; false on a kernel without it. */
  isStalling(): boolean {
    const [, percent = "0"] = /^some avg10=([\d.]+)/m.exec(this.#read("/proc/pressure/memory")) ?? [];
    return Number(percent) >= stallingPercent;
  }

  isRising(): boolean {
    return shareAvailable(this.#read("/proc/meminfo")) < risingShare || this.spareBytes() < 0;
  }

  isHigh(): boolean {
    return shareAvailable(this.#read("/proc/meminfo")) < highShare || this.spareBytes() < 0;
  }

  #read(path: string): string {
    const { read = (file) => readFileSync(file, "latin1") } = this.#options;
    try {
      return read(path);
    } catch {
      return "";
    }
  }
}

/**
 * The memory of a host with this much, and its limit set for all VMs together. A reserve of more than half is kept by
 * admission and the memory watch alone.
 */
export function limitedMemory(
  ownMb: number,
  reserveMb: number,
  jail: Pick<Jail, "limitMemory" | "memoryRoom"> | undefined,
): HostMemory {
  jail?.limitMemory(Math.floor(Math.max(ownMb - reserveMb, ownMb / 2)) * 2 ** 20);
  const vmRoomBytes = () => jail?.memoryRoom() ?? Number.POSITIVE_INFINITY;
  return new HostMemory({ reserveBytes: reserveMb * 2 ** 20, vmRoomBytes });
}
