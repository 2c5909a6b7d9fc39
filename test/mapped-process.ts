/** A real QEMU with an empty machine that maps a base file like a VM's and does not run. */
import { mappingsOf } from "../src/vmm/memory/pagemap.ts";
import { endProcess, spawnDetached } from "../src/vmm/process.ts";
import type { VmProcess } from "../src/vmm/vmm.ts";
import { waitFor } from "./wait-for.ts";

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
    let cause: unknown;
    await waitFor(
      () => `QEMU maps ${base}: ${cause}`,
      () => {
        try {
          return mappingsOf(spawned.process.pid, base, memoryMb << 20);
        } catch (error) {
          cause = error;
          return undefined;
        }
      },
    );
    return await use(spawned.process);
  } finally {
    await endProcess(spawned.process);
  }
}
