/** A base or template as a folder that hosts share. */
import { hash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { requireOverlay } from "../../vmm/layer-merge.ts";
import { diskBytesOf } from "../../vmm/qcow2.ts";
import { fileNames, largeFiles, openCheckpoint, parentHash, verifyHashes } from "../disk/checkpoint-folder.ts";
import { readHashes } from "../disk/hashes.ts";
import { hashesName, type Manifest } from "../disk/manifest.ts";
import { overlayOn } from "../images/boot.ts";
import type { Image } from "../images/images.ts";
import { requireExactly, requireSmall } from "./exact-tree.ts";
import type { SharedFolder, SharedLayer } from "./shared-folder.ts";

const allNames = [...Object.values(fileNames), hashesName];

type Below = (kind: "image" | "qemu", key: string) => Promise<SharedLayer | undefined>;

export interface WantedCheckpoint {
  kind: "base" | "template";
  key: string;
  /** Throws where it is not here. */
  image: (of: Manifest["image"]) => Image;
}

/** Throws an Error where it cannot be described. A build of QEMU that is gone is left out: another one of its version serves. */
export async function checkpointIn(folder: string, below: Below): Promise<SharedFolder> {
  const manifest = await manifestIn(folder);
  const hashes = (await readHashes(folder)) ?? {};
  const { image, machine } = manifest;
  const wanted = [["image", `${image.name}/${image.hash}`] as const, ["qemu", machine.qemuBuild] as const];
  const layers: SharedLayer[] = [];
  for (const [kind, key] of wanted) {
    const layer = key === undefined ? undefined : await below(kind, key);
    if (layer !== undefined) layers.push(layer);
    else if (kind === "image") throw new Error(`its image ${key} is gone`);
  }
  const files = namesOf(manifest).map((name) => ({ name, path: join(folder, name), sha256: hashes[name]?.sha256 }));
  return { sha256: parentHash(manifest), layers, files };
}

/**
 * Throws an Error unless the folder has a checkpoint of this kind whose bytes are those of its checksums, with nothing beside it, on an
 * image that is here. The header of its disk layer has to be the one that would have been written here: a VM opens what it names.
 */
export async function requireCheckpoint(folder: string, { kind, key, image }: WantedCheckpoint): Promise<void> {
  for (const name of [fileNames.manifest, hashesName]) await requireSmall(join(folder, name));
  const manifest = await manifestIn(folder);
  if (manifest.kind !== kind) throw new Error(`its manifest is that of a ${manifest.kind}`);
  await requireExactly(folder, allNames);
  const hashes = (await readHashes(folder)) ?? {};
  const unknown = largeFiles(manifest).find((name) => hashes[name]?.bytes !== manifest.files[name]?.bytes);
  if (unknown !== undefined) throw new Error(`it has no checksum of ${unknown}`);
  await verifyHashes(folder, manifest);
  if (kind === "base") await requireNamed(folder, key);
  const { root, diskBytes, manifest: built } = image(manifest.image);
  const [lowest] = manifest.layers;
  if (
    manifest.layers.length !== 1 ||
    (lowest?.sha256 ?? built.files["root.ext4"].sha256) !== built.files["root.ext4"].sha256
  )
    throw new Error("it stands on another disk than that of its image");
  const layer = join(folder, fileNames.disk);
  const bytes = diskBytesOf(layer);
  if (bytes < diskBytes || (kind === "base" && bytes !== diskBytes)) throw new Error(`its disk has ${bytes} bytes`);
  // At the same depth as where it is published.
  await requireOverlay(layer, overlayOn(folder, root, "raw", bytes));
}

async function manifestIn(folder: string): Promise<Manifest> {
  const manifest = await openCheckpoint(folder);
  if (manifest === undefined) throw new Error("it has no manifest");
  const lacked = [fileNames.state, fileNames.memory, fileNames.disk].find((name) => manifest.files[name] === undefined);
  if (lacked !== undefined) throw new Error(`it has no ${lacked}`);
  return manifest;
}

/** The name of a base ends in the hash of its manifest, but for names of earlier releases. */
async function requireNamed(folder: string, key: string): Promise<void> {
  const end = /-([0-9a-f]{8})$/.exec(key)?.[1];
  if (end === undefined) return;
  const found = hash("sha256", await readFile(join(folder, fileNames.manifest))).slice(0, 8);
  if (found !== end) throw new Error(`its manifest is that of another base, ${found}`);
}

function namesOf({ files }: Manifest): string[] {
  return [fileNames.manifest, ...Object.keys(files)];
}
