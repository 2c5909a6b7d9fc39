/** Ends VMs by the journals in their folders, also those that an earlier daemon started. */
import { readdirSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Vmm } from "../../vmm/vmm.ts";
import { type OnDamage, readVm, removeVm } from "./capsule-folder.ts";
import type { Paths } from "./paths.ts";

export type Reaper = Pick<Vmm, "find" | "reap">;

/** Ends the VM of one folder; true if there was one. */
export async function reapFolder(killer: Reaper, folder: string): Promise<boolean> {
  const vm = await readVm(folder);
  if (vm === undefined) return false;
  const processes = vm.process === null ? await killer.find(vm.nonce) : [vm.process];
  for (const process of processes) await killer.reap(vm.nonce, process);
  await removeVm(folder);
  return processes.length > 0;
}

/** Ends every VM of a data folder; resolves with their number. */
export async function reapAll(killer: Reaper, paths: Paths): Promise<number> {
  let ended = 0;
  for (const room of [paths.capsules, paths.work]) {
    for (const name of entriesOf(room)) if (await reapFolder(killer, join(room, name))) ended++;
  }
  return ended;
}

/**
 * Ends everything that an earlier daemon left: VMs that no journal names any more, and the folders in `work/` with their VMs.
 * `onDamage` is called for journals that cannot be read.
 */
export async function sweepLeftovers(
  vmm: Pick<Vmm, "find" | "findBelow" | "reap">,
  paths: Paths,
  onDamage: OnDamage,
): Promise<void> {
  const known = new Set<string>();
  for (const room of [paths.capsules, paths.work]) {
    for (const name of entriesOf(room)) known.add((await readVm(join(room, name), onDamage))?.nonce ?? "");
  }
  for (const { process, nonce } of await vmm.findBelow(paths.data)) {
    if (!known.has(nonce)) await vmm.reap(nonce, process);
  }
  for (const name of entriesOf(paths.work)) {
    const folder = join(paths.work, name);
    await reapFolder(vmm, folder);
    await rm(folder, { recursive: true, force: true });
  }
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
