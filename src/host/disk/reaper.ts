/** Ends VMs by the journals in their folders, also those that an earlier daemon started. */
import { readdirSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Vmm } from "../../vmm/vmm.ts";
import { type OnDamage, readVm, removeVm, type VmFile } from "./capsule-folder.ts";
import type { Paths } from "./paths.ts";

export type Reaper = Pick<Vmm, "find" | "reap">;

/**
 * Ends the VM of one folder; true if there was one. `undo` is awaited between the end of the VM and that of its journal, so
 * after a crash or a failure in between the next reap calls it again.
 */
export async function reapFolder(killer: Reaper, folder: string, undo?: () => Promise<void>): Promise<boolean> {
  const vm = await readVm(folder);
  const hadVm = vm !== undefined && (await endVm(killer, vm));
  await undo?.();
  await removeVm(folder);
  return hadVm;
}

/** Ends every VM of a data folder. The journals stay: the next start undoes their unfinished resumes. */
export async function endAll(killer: Reaper, paths: Paths): Promise<void> {
  for (const parent of [paths.capsules, paths.work]) {
    for (const name of entriesOf(parent)) {
      const vm = await readVm(join(parent, name));
      if (vm !== undefined) await endVm(killer, vm);
    }
  }
}

/** True if there was one. */
async function endVm(killer: Reaper, { process, nonce }: VmFile): Promise<boolean> {
  const processes = process === null ? await killer.find(nonce) : [process];
  for (const each of processes) await killer.reap(nonce, each);
  return processes.length > 0;
}

/**
 * Ends everything that an earlier daemon left: VMs that no journal names any more, and the folders in `work/` with their VMs.
 * `onDamage` is called for journals that cannot be read, and for what could not be ended or removed.
 */
export async function sweepLeftovers(
  vmm: Pick<Vmm, "find" | "findBelow" | "reap">,
  paths: Paths,
  onDamage: OnDamage,
): Promise<void> {
  const known = new Set<string>();
  for (const parent of [paths.capsules, paths.work]) {
    for (const name of entriesOf(parent)) known.add((await readVm(join(parent, name), onDamage))?.nonce ?? "");
  }
  for (const { process, nonce } of await vmm.findBelow(paths.data)) {
    if (!known.has(nonce)) await vmm.reap(nonce, process).catch(report(onDamage, paths.data));
  }
  for (const name of entriesOf(paths.work)) {
    const folder = join(paths.work, name);
    await reapFolder(vmm, folder)
      .then(() => rm(folder, { recursive: true, force: true }))
      .catch(report(onDamage, folder));
  }
}

function report(onDamage: OnDamage, folder: string): (error: unknown) => void {
  return (error) => onDamage(folder, String(error));
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
