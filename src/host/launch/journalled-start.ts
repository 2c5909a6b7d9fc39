/**
 * Starts a process that the next daemon finds, whenever this one ends: the journal in `folder` has its nonce before it is spawned,
 * and its pid as soon as that is known. When the second journal cannot be written, the process is ended.
 */
import type { OnSpawn, VmProcess } from "../../vmm/vmm.ts";
import { type VmFile, writeVm } from "../disk/capsule-folder.ts";

export async function startJournalled<T extends { kill(): Promise<void> }>(
  folder: string,
  journal: Omit<VmFile, "process">,
  start: (onSpawn: OnSpawn) => Promise<T>,
): Promise<T> {
  await writeVm(folder, { ...journal, process: null });
  let journalled: Promise<void> | undefined;
  const started = await start((process: VmProcess) => {
    journalled = writeVm(folder, { ...journal, process });
    journalled.catch(() => {}); // seen below
  });
  try {
    await journalled;
    return started;
  } catch (error) {
    await started.kill();
    throw error;
  }
}
