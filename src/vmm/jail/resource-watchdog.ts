/**
 * Enforces a VM's memory and CPU limits where no control group does. The kernel's per-process limits count neither
 * shared anonymous memory nor the CPU time of all threads together. A guest cannot make QEMU exceed these limits, so a
 * QEMU that does has been compromised.
 */
import { readFileSync } from "node:fs";
import { statOf } from "../process.ts";
import type { ProfileLimits } from "./jail-args.ts";

/** USER_HZ: unit of the CPU times in /proc, 100 on every architecture of Linux. */
const ticksPerSec = 100;
/** CPU use is averaged over this time: QEMU's disk threads exceed the limit in short bursts. */
const averageMs = 30_000;

export interface ResourceUse {
  atMs: number;
  /** CPU time since the process began. */
  spentTicks: number;
  /** Anonymous and shared memory, resident or swapped out. */
  memoryBytes: number;
}

export class ResourceWatchdog {
  readonly #limits: Pick<ProfileLimits, "dataBytes" | "cpus">;
  #since: ResourceUse | undefined;

  constructor(limits: Pick<ProfileLimits, "dataBytes" | "cpus">) {
    this.#limits = limits;
  }

  /** Names an exceeded limit, if any. */
  sample(pid: number): string | undefined {
    const use = useOf(pid, performance.now());
    return use === null ? undefined : this.check(use);
  }

  check(use: ResourceUse): string | undefined {
    const { dataBytes, cpus } = this.#limits;
    if (use.memoryBytes > dataBytes) return `memory: ${use.memoryBytes} bytes, of ${dataBytes}`;
    this.#since ??= use;
    const spanMs = use.atMs - this.#since.atMs;
    if (spanMs < averageMs) return undefined;
    const usedCpus = ((use.spentTicks - this.#since.spentTicks) / ticksPerSec / spanMs) * 1_000;
    this.#since = use;
    return usedCpus > cpus
      ? `processor: ${usedCpus.toFixed(1)} CPUs for ${Math.round(spanMs / 1_000)} s, of ${cpus}`
      : undefined;
  }
}

function useOf(pid: number, atMs: number): ResourceUse | null {
  const stat = statOf(pid);
  if (stat === null) return null;
  return { atMs, spentTicks: stat.spentTicks, memoryBytes: memoryOf(pid) };
}

function memoryOf(pid: number): number {
  try {
    const status = readFileSync(`/proc/${pid}/status`, "latin1");
    const lines = [...status.matchAll(/^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$/gm)];
    return lines.reduce((sum, line) => sum + Number(line[1]) * 1_024, 0);
  } catch {
    return 0;
  }
}
