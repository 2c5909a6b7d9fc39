/** The folder of a new capsule: what it says of itself, and an empty disk layer on what it starts from. */
import { mkdir, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import { type CapsuleFile, diskName, writeCapsule } from "../disk/capsule-folder.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { overlayOn } from "./boot.ts";
import { hashOfSource, type Source, type TemplateStore } from "./template-store.ts";

/** Throws when the folder is there already. On failure what was made of it is the caller's to remove. */
export async function createCapsuleFolder(
  paths: Paths,
  sources: TemplateStore,
  id: string,
  source: Source,
): Promise<CapsuleFile> {
  const folder = paths.capsule(id);
  await mkdir(folder, { mode: 0o700 });
  const { machine, image } = source.manifest;
  const capsule: CapsuleFile = {
    format: 1,
    origin: relative(paths.data, source.folder),
    originSha256: hashOfSource(source.manifest),
    image,
    machine,
  };
  const base = join(source.folder, fileNames.disk);
  const overlay = emptyOverlay(overlayOn(folder, base, "qcow2", sources.image(image).diskBytes));
  await Promise.all([writeFile(join(folder, diskName), overlay, { mode: 0o600 }), writeCapsule(folder, capsule)]);
  return capsule;
}
