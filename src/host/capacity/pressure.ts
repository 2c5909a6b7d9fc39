/** Whether the host has memory to spare for what nobody has asked for yet. */
import { readFileSync } from "node:fs";

export interface Pressure {
  /** Nothing more should be made ahead of time. */
  isRising(): boolean;
  /** What was made ahead of time should go. */
  isHigh(): boolean;
}

const risingShare = 0.15;
const highShare = 0.07;

export class MemoryPressure implements Pressure {
  readonly #meminfo: () => string;

  /** `meminfo`: what the kernel says now, as in /proc/meminfo. */
  constructor(meminfo = () => readFileSync("/proc/meminfo", "latin1")) {
    this.#meminfo = meminfo;
  }

  isRising(): boolean {
    return shareAvailable(this.#meminfo()) < risingShare;
  }

  isHigh(): boolean {
    return shareAvailable(this.#meminfo()) < highShare;
  }
}

/** Memory that programs can have without swapping, as a share of all; 1 where the kernel does not say. */
export function shareAvailable(meminfo: string): number {
  const kib = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  const share = kib("MemAvailable") / kib("MemTotal");
  return Number.isFinite(share) ? share : 1;
}
