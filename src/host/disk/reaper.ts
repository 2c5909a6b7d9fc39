/** Ends VMs that a folder's journal names, whoever started them. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { Vmm } from "../../vmm/vmm.ts";
import { forgetVm, type OnDamage, readVm } from "./capsule-folder.ts";
import type { Paths } from "./paths.ts";

export type Reaper = Pick<Vmm, "find" | "reap">;

/** Ends the VM of one folder, if it has one. */
export async function reapFolder(killer: Reaper, folder: string): Promise<boolean> {
  const vm = await readVm(folder);
  if (vm === undefined) return false;
  const processes = vm.process === null ? await killer.find(vm.nonce) : [vm.process];
  for (const process of processes) await killer.reap(vm.nonce, process);
  await forgetVm(folder);
  return processes.length > 0;
}

/** Ends every VM of a data folder; resolves with how many there were. */
export async function reapAll(killer: Reaper, paths: Paths): Promise<number> {
  let ended = 0;
  for (const room of [paths.capsules, paths.work]) {
    for (const name of entriesOf(room)) if (await reapFolder(killer, join(room, name))) ended++;
  }
  return ended;
}

/** Ends the VMs of a data folder that no journal in it names any more: their folder is gone, or another VM's. */
export async function reapLeftovers(
  vmm: Pick<Vmm, "findBelow" | "reap">,
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
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
