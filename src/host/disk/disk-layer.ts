/**
 * The disk layer of a paused capsule, which has to be the one that its memory was saved with (docs/adr/0023).
 *
 * Before the commit of a resume only the guest's kernel runs, and what it writes is harmless, so after a failure the manifest
 * gets the layer's new size and time. The VM's journal tells that the layer was changed by a resume of this checkpoint, or by
 * a daemon that let the saved VM run on. Where user processes were not frozen they run too, and the resume works on a copy:
 *
 *      capsules/<id>/checkpoint/disk.qcow2    the layer, set aside until the checkpoint is removed
 *      capsules/<id>/disk.qcow2               the copy
 */
import { existsSync } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { diskBytesOf } from "../../vmm/qcow2.ts";
import { copySparse } from "../../vmm/sparse-copy.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { unlessAborted } from "../deadline.ts";
import { checkpointName, diskName, readVm, vmName } from "./capsule-folder.ts";
import { diskLayerOf, fileNames, readManifest } from "./checkpoint-folder.ts";
import { type DiskSpace, writtenTo } from "./disk-space.ts";
import { syncFile, syncFileAndTimes, syncFolder, writeJson } from "./files.ts";
import { type DiskLayer, encodeManifest, type Manifest } from "./manifest.ts";

/** Units to which archives and other file systems cut times off. */
const timeUnits = [1n, 100n, 1_000n, 1_000_000n, 1_000_000_000n];

/** Size of the guest's disk in the folder of a capsule or template, MiB, as its header says; undefined: none that can be read. */
export function diskMbIn(folder: string): number | undefined {
  try {
    return Math.floor(diskBytesOf(join(folder, diskName)) / 2 ** 20) || undefined;
  } catch {
    return undefined;
  }
}

/** Throws CapsuleError("conflict") when the layer was changed after the memory was saved. */
export function requireSameLayer(folder: string, { diskLayer }: Pick<Manifest, "diskLayer">, what: string): void {
  if (diskLayer === null) return; // format 1
  const path = join(folder, diskName);
  if (!existsSync(path)) throw new CapsuleError("internal_error", `${what} has no disk layer`);
  const found = diskLayerOf(path);
  if (isSameLayer(diskLayer, found)) return;
  const message = `${what} cannot be resumed: its disk layer is not the one that its memory was saved with`;
  throw new CapsuleError("conflict", `${message}: ${describe(diskLayer)} then, ${describe(found)} now`);
}

/** Whether the two are the same, or a copy whose time was cut off. */
export function isSameLayer(saved: DiskLayer, found: DiskLayer): boolean {
  const isSameTime = timeUnits.some((unit) => saved.mtimeNs - (saved.mtimeNs % unit) === found.mtimeNs);
  return saved.bytes === found.bytes && isSameTime;
}

/**
 * Puts a copy in the layer's place, durable enough for a process that ends: both names are of one folder's journal. After a
 * failure `putLayerBack` is to be called. When the signal fires the copy is ended, and its reason is thrown.
 */
export async function setLayerAside(
  folder: string,
  space: Pick<DiskSpace, "reserve" | "orReclaim">,
  what: string,
  signal?: AbortSignal,
): Promise<void> {
  const [layer, aside] = [join(folder, diskName), asideOf(folder)];
  await rename(layer, aside);
  using _room = await space.orReclaim(() => space.reserve(writtenTo(aside), what, () => writtenTo(layer)));
  await copySparse(aside, layer, signal);
  await unlessAborted(signal, syncFile(layer));
}

/**
 * Undoes what a resume that failed or was cut off has done to the layer. Call when its VM has ended and its journal is there. A
 * layer that another VM may have changed is left alone. `scratch`: a path on the same file system that nothing else uses.
 */
export async function undoResume(folder: string, scratch: string): Promise<void> {
  if (await putLayerBack(folder)) return;
  const checkpoint = join(folder, checkpointName);
  const manifest = await readManifest(checkpoint);
  if (manifest === undefined || manifest.diskLayer === null || !existsSync(join(folder, diskName))) return;
  const diskLayer = diskLayerOf(join(folder, diskName));
  if (isSameLayer(manifest.diskLayer, diskLayer) || !(await isWorkOfVm(folder, manifest, diskLayer))) return;
  await syncFileAndTimes(join(folder, diskName));
  await writeJson(scratch, encodeManifest({ ...manifest, diskLayer }), { durable: true });
  await rename(scratch, join(checkpoint, fileNames.manifest));
  await syncFolder(checkpoint);
}

/** Whether the layer is the one that the memory was saved with, or will be once the resume is undone. */
export async function canBeResumed(folder: string): Promise<boolean> {
  const manifest = await readManifest(join(folder, checkpointName));
  if (manifest === undefined || manifest.diskLayer === null) return manifest !== undefined;
  if (!existsSync(join(folder, diskName))) return false;
  const found = diskLayerOf(join(folder, diskName));
  return isSameLayer(manifest.diskLayer, found) || isWorkOfVm(folder, manifest, found);
}

/** Whether the layer was changed by the kernel of a guest that continued this checkpoint, as the VM's journal tells. */
async function isWorkOfVm(
  folder: string,
  { frozen, revision, diskLayer }: Manifest,
  found: DiskLayer,
): Promise<boolean> {
  if (frozen !== true || diskLayer === null || !existsSync(join(folder, vmName))) return false;
  const { restores } = (await readVm(folder)) ?? {};
  if (restores !== undefined) return restores === revision;
  return found.mtimeNs >= diskLayer.mtimeNs; // the journal is of the release before, or lost its content in a power cut
}

/** True when the layer had been set aside. */
export async function putLayerBack(folder: string): Promise<boolean> {
  const aside = asideOf(folder);
  if (!existsSync(aside)) return false;
  await rename(aside, join(folder, diskName));
  await syncFolder(folder);
  return true;
}

/** Removes the layer that was set aside, if any. Call when the copy is the capsule's. The checkpoint's removal repeats it. */
export async function dropAside(folder: string): Promise<void> {
  const aside = asideOf(folder);
  if (existsSync(aside)) await rm(aside, { force: true }).catch(() => {});
}

function asideOf(folder: string): string {
  return join(folder, checkpointName, fileNames.disk);
}

function describe({ bytes, mtimeNs }: DiskLayer): string {
  return `${bytes} bytes of ${new Date(Number(mtimeNs / 1_000_000n)).toISOString()}`;
}
