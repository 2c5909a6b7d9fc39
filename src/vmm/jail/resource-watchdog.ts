/**
 * The watch over what a VM takes where no control group bounds it. Limits of a process do not count memory that is shared
 * anonymously, nor how much of the processor many threads take together. No guest gets QEMU to exceed these; a QEMU that
 * does is no longer ours.
 */
import { readFileSync } from "node:fs";
import { statOf } from "../process.ts";
import type { ProfileLimits } from "./jail-args.ts";

/** Clock ticks of /proc a second, the same on every machine that Linux runs on today. */
const ticksPerSec = 100;
const lookMs = 5_000;
/** Short bursts are QEMU's workers at the disk. */
const burstMs = 30_000;

export interface Use {
  atMs: number;
  /** Of the processor, since the process began. */
  spentTicks: number;
  /** Memory of its own, swapped out or not. */
  ownBytes: number;
}

export class ResourceWatchdog {
  readonly #limits: Pick<ProfileLimits, "dataBytes" | "cpus">;
  #sampledMs = Number.NEGATIVE_INFINITY;
  #since: Use | undefined;

  constructor(limits: Pick<ProfileLimits, "dataBytes" | "cpus">) {
    this.#limits = limits;
  }

  /** What the process takes too much of; undefined: nothing. Cheap when it has looked a short while ago. */
  sample(pid: number): string | undefined {
    const atMs = performance.now();
    if (atMs - this.#sampledMs < lookMs) return undefined;
    this.#sampledMs = atMs;
    const use = useOf(pid, atMs);
    return use === null ? undefined : this.check(use);
  }

  check(use: Use): string | undefined {
    const { dataBytes, cpus } = this.#limits;
    if (use.ownBytes > dataBytes) return `memory: ${use.ownBytes} bytes, of ${dataBytes}`;
    this.#since ??= use;
    const spanMs = use.atMs - this.#since.atMs;
    if (spanMs < burstMs) return undefined;
    const taken = ((use.spentTicks - this.#since.spentTicks) / ticksPerSec / spanMs) * 1_000;
    this.#since = use;
    return taken > cpus
      ? `processor: ${taken.toFixed(1)} CPUs for ${Math.round(spanMs / 1_000)} s, of ${cpus}`
      : undefined;
  }
}

function useOf(pid: number, atMs: number): Use | null {
  const stat = statOf(pid);
  if (stat === null) return null;
  return { atMs, spentTicks: stat.spentTicks, ownBytes: ownBytesOf(pid) };
}

function ownBytesOf(pid: number): number {
  try {
    const status = readFileSync(`/proc/${pid}/status`, "latin1");
    const lines = [...status.matchAll(/^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$/gm)];
    return lines.reduce((sum, line) => sum + Number(line[1]) * 1_024, 0);
  } catch {
    return 0;
  }
}
