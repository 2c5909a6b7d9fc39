/** The folder of a new capsule. */
import { mkdir, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import { type CapsuleFile, diskName, writeCapsule } from "../disk/capsule-folder.ts";
import { fileNames, parentHash } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { Parent } from "../images/bases.ts";
import { overlayOn } from "../images/boot.ts";
import type { TemplateStore } from "../images/template-store.ts";

/**
 * Makes the folder of a new capsule: capsule.json, and an empty disk layer on its parent's disk. Throws when the folder
 * exists. After a failure the caller removes it.
 */
export async function createCapsuleFolder(
  paths: Paths,
  templates: Pick<TemplateStore, "image">,
  id: string,
  parent: Parent,
): Promise<CapsuleFile> {
  const folder = paths.capsule(id);
  await mkdir(folder, { mode: 0o700 });
  const { machine, image } = parent.manifest;
  const capsule: CapsuleFile = {
    parent: relative(paths.data, parent.folder),
    parentSha256: parentHash(parent.manifest),
    image,
    machine,
  };
  const disk = join(parent.folder, fileNames.disk);
  const overlay = emptyOverlay(overlayOn(folder, disk, "qcow2", templates.image(image).diskBytes));
  await Promise.all([writeFile(join(folder, diskName), overlay, { mode: 0o600 }), writeCapsule(folder, capsule)]);
  return capsule;
}
