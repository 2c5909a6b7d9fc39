/** The work of a start before its first VM: ends and removes what an earlier daemon left, and unused bases and builds. */
import type { OnDamage } from "./disk/capsule-folder.ts";
import type { Paths } from "./disk/paths.ts";
import { sweepLeftovers } from "./disk/reaper.ts";
import { readReferences } from "./disk/references.ts";
import { type ImageStore, trimBuilds } from "./images/image-store.ts";
import { trimQemuBuilds, type Vmms } from "./qemu-builds/vmms.ts";

export interface SweepOptions {
  paths: Paths;
  vmm: Vmms;
  images: ImageStore;
  trimBases: () => Promise<void>;
  /** Called for what is damaged, and for what could not be ended or removed. */
  onDamage: OnDamage;
}

export async function sweep({ paths, vmm, images, trimBases, onDamage }: SweepOptions): Promise<void> {
  const report = (error: unknown) => onDamage(paths.data, String(error));
  await sweepLeftovers(vmm, paths, onDamage);
  await trimBases().catch(report);
  const references = await readReferences(paths);
  for (const { folder, why } of references.damaged) onDamage(folder, why);
  await trimBuilds(paths, images.current, references).catch(report);
  await trimQemuBuilds(references, vmm).catch(report);
}
