import type { SavedMemory } from "../src/vmm/memory/diff-writer.ts";
import { MemorySave } from "../src/vmm/memory/memory-diff.ts";

/** Saves the diff of a stopped process's memory against its base. */
export async function saveMemory(pid: number, base: string, memoryBytes: number, path: string): Promise<SavedMemory> {
  await using save = new MemorySave(pid, base, memoryBytes, path);
  await save.open();
  const saved = await save.copy();
  await save.finish();
  return saved;
}
