/** A real QEMU with an empty machine that maps a base file like a VM's and does not run. */
import { setTimeout as delay } from "node:timers/promises";
import { mappingsOf } from "../src/vmm/memory/pagemap.ts";
import { endProcess, spawnDetached } from "../src/vmm/process.ts";
import type { VmProcess } from "../src/vmm/vmm.ts";

const startMs = 60_000;
const pollMs = 2;

/** Runs `use` with a process that maps `base` privately; `memoryMb` is the file's size; options in `before` take effect first. */
export async function withMapped<T>(
  folder: string,
  base: string,
  memoryMb: number,
  use: (process: VmProcess) => Promise<T> | T,
  before: string[] = [],
): Promise<T> {
  const backend = `memory-backend-file,id=ram,size=${memoryMb}M,mem-path=${base},share=off`;
  const options = ["-machine", "none", "-nodefaults", "-display", "none", "-S", ...before, "-object", backend];
  const spawned = spawnDetached(["qemu-system-x86_64", ...options], folder);
  try {
    const deadline = performance.now() + startMs;
    for (;;) {
      try {
        mappingsOf(spawned.process.pid, base, memoryMb << 20);
        break;
      } catch (error) {
        if (performance.now() > deadline) throw error;
      }
      await delay(pollMs);
    }
    return await use(spawned.process);
  } finally {
    await endProcess(spawned.process);
  }
}
