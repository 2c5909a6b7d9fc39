/** The folder of a new capsule. */
import { mkdir, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { diskBytesOf, emptyOverlay } from "../../vmm/qcow2.ts";
import { type CapsuleFile, diskName, writeCapsule } from "../disk/capsule-folder.ts";
import { fileNames, parentHash } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { Parent } from "../images/bases.ts";
import { overlayOn } from "../images/boot.ts";
import type { TemplateStore } from "../images/template-store.ts";

/**
 * Makes the folder of a new capsule: capsule.json, and an empty disk layer on its parent's disk, of the parent's size: a disk of
 * `diskMb` is made larger once its VM is loaded. Throws when the folder exists. After a failure the caller removes it.
 */
export async function createCapsuleFolder(
  paths: Paths,
  templates: Pick<TemplateStore, "image">,
  id: string,
  parent: Parent,
  diskMb = 0,
): Promise<CapsuleFile> {
  const folder = paths.capsule(id);
  await mkdir(folder, { mode: 0o700 });
  const { machine, image } = parent.manifest;
  const disk = join(parent.folder, fileNames.disk);
  const parentBytes = diskBytesOf(disk);
  const diskBytes = Math.max(parentBytes, diskMb * 2 ** 20);
  const capsule: CapsuleFile = {
    parent: relative(paths.data, parent.folder),
    parentSha256: parentHash(parent.manifest),
    image,
    machine,
    ...(diskBytes > templates.image(image).diskBytes ? { diskBytes } : {}),
  };
  const overlay = emptyOverlay(overlayOn(folder, disk, "qcow2", parentBytes));
  await Promise.all([writeFile(join(folder, diskName), overlay, { mode: 0o600 }), writeCapsule(folder, capsule)]);
  return capsule;
}
