import type { SavedMemory } from "../src/vmm/memory/diff-writer.ts";
import { MemorySave } from "../src/vmm/memory/memory-diff.ts";
import type { VmProcess } from "../src/vmm/vmm.ts";

/** Saves the diff of a stopped process's memory against its base. */
export async function saveMemory(
  process: VmProcess,
  base: string,
  memoryBytes: number,
  path: string,
): Promise<SavedMemory> {
  await using save = new MemorySave(process, base, memoryBytes, path);
  await save.open();
  const saved = await save.copy();
  await save.finish();
  return saved;
}
