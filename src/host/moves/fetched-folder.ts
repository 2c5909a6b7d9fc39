/**
 * The check of a folder that came from outside of this host, before it is a capsule's. A guest may have taken
 * over its writer, so each file is bounded before it is read, and compared with the capsule's row.
 */
import { lstat, readdir } from "node:fs/promises";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { requireOverlay } from "../../vmm/layer-merge.ts";
import { deviceStateMaxBytes } from "../../vmm/vm-folder.ts";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import {
  type CapsuleFile,
  capsuleName,
  capsuleParts,
  checkpointName,
  diskName,
  readCapsule,
} from "../disk/capsule-folder.ts";
import { diffName, diskLayerOf, fileNames, largeFiles, openCheckpoint } from "../disk/checkpoint-folder.ts";
import { syncFileAndTimes, syncFolder, writeJson } from "../disk/files.ts";
import { readHashes } from "../disk/hashes.ts";
import { encodeManifest, hashesName, type Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import { overlayOn } from "../images/boot.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { FetchedRow, MovedRecord } from "./moved-folders.ts";
import { parentOf, recordOf, requireImageNames } from "./moved-record.ts";

export interface MoveOptions {
  paths: Paths;
  templates: Pick<TemplateStore, "image" | "requireParent">;
}

/** Content of a paused capsule's folder. */
export interface ReadFolder {
  capsule: CapsuleFile;
  manifest: Manifest;
  record: MovedRecord;
}

/** Files of a checkpoint that is moved. */
export const checkpointParts = [fileNames.manifest, fileNames.state, diffName, hashesName];
/** JSON files of some hundred bytes. */
const jsonMaxBytes = 64 << 10;
/** Most bytes of the hashes' file for each 4 MiB of memory: a hash in JSON has 70. */
const hashMaxBytes = 128;

/**
 * Reads and checks the files that a paused capsule's folder is known by, and the header of its disk layer. `folder` is as deep in
 * the data folder as a capsule's. Throws an Error that says what is wrong.
 */
export async function readFolder(folder: string, { paths, templates }: MoveOptions): Promise<ReadFolder> {
  const checkpoint = join(folder, checkpointName);
  const [capsule, manifest] = [await readCapsule(folder), await openCheckpoint(checkpoint)];
  if (capsule === undefined || manifest === undefined) throw new Error("it has no checkpoint");
  requireImageNames(capsule.image);
  parentOf(capsule.parent);
  const record = recordOf(capsule, manifest, () => templates.image(capsule.image).diskBytes);
  await templates.requireParent(capsule, "the capsule");
  const parentDisk = join(paths.data, capsule.parent, fileNames.disk);
  await requireOverlay(join(folder, diskName), overlayOn(folder, parentDisk, "qcow2", record.diskBytes));
  const files = Object.keys(manifest.files).sort();
  if (!isDeepStrictEqual(files, [diffName, fileNames.state].sort()))
    throw new Error(`its checkpoint has the files ${files.join(", ")}`);
  return { capsule, manifest, record };
}

/** As `MovedFolders.finish`. */
export async function finishFetched(folder: string, row: FetchedRow, options: MoveOptions): Promise<void> {
  try {
    await requireFiles(folder, row);
    const { manifest, record } = await readFolder(folder, options);
    requireRow(record, row);
    await requireHashes(folder, manifest);
    await renew(folder, manifest, row.epoch);
  } catch (error) {
    // The disk of this host is full, or fails.
    if (typeof (error as NodeJS.ErrnoException).code === "string" && !(error instanceof CapsuleError)) throw error;
    const message = `the checkpoint that was fetched cannot be used: ${messageOf(error)}`;
    throw new CapsuleError("agent_error", message, { cause: error });
  }
}

/** Exactly the files that belong there, none of them larger than it can be. */
async function requireFiles(folder: string, { memoryMb }: FetchedRow): Promise<void> {
  const memoryBytes = memoryMb * 2 ** 20;
  const limits: [name: string, bytes: number][] = [
    [capsuleName, jsonMaxBytes],
    [diskName, Number.POSITIVE_INFINITY],
    [join(checkpointName, fileNames.manifest), jsonMaxBytes],
    [join(checkpointName, fileNames.state), deviceStateMaxBytes],
    // Each page, and at most an entry of the index for each.
    [join(checkpointName, diffName), memoryBytes + memoryBytes / 512 + jsonMaxBytes],
    [join(checkpointName, hashesName), Math.ceil(memoryBytes / (4 << 20)) * hashMaxBytes + jsonMaxBytes],
  ];
  await requireNames(folder, capsuleParts);
  await requireNames(join(folder, checkpointName), checkpointParts);
  for (const [name, most] of limits) {
    const found = await lstat(join(folder, name));
    if (!found.isFile() || found.nlink !== 1) throw new Error(`${name} is no plain file`);
    if (found.size === 0 || found.size > most) throw new Error(`${name} has ${found.size} bytes`);
  }
}

async function requireNames(folder: string, expected: readonly string[]): Promise<void> {
  const names = await readdir(folder);
  if (!isDeepStrictEqual(names.sort(), [...expected].sort())) throw new Error(`it has the files ${names.join(", ")}`);
}

function requireRow(record: MovedRecord, row: FetchedRow): void {
  // As JSON: a field that is undefined is none.
  const found = JSON.parse(JSON.stringify(record)) as MovedRecord;
  if (!isDeepStrictEqual(found, row.record)) {
    const kept = (row.record ?? {}) as Record<string, unknown>;
    const names = Object.entries(found).filter(([name, value]) => !isDeepStrictEqual(value, kept[name]));
    throw new Error(`its ${names.map(([name]) => name).join(", ") || "record"} is not the row's`);
  }
  const parent = row.storage === null ? "base" : "template";
  const { kind, key } = parentOf(record.parent);
  if (kind !== parent || (row.storage !== null && key !== row.storage))
    throw new Error(`it was started from ${record.parent}, and its row from ${row.storage ?? "a built-in image"}`);
  const { vcpus, memory_mb } = record.machine;
  if (vcpus !== row.vcpus || memory_mb !== row.memoryMb || Math.floor(record.diskBytes / 2 ** 20) !== row.diskMb)
    throw new Error("its vCPUs, memory or disk are not the row's");
}

/** A resume compares the large files with them. Nothing reads those of another file. */
async function requireHashes(folder: string, manifest: Manifest): Promise<void> {
  const hashes = (await readHashes(join(folder, checkpointName))) ?? {};
  const without = largeFiles(manifest).find((name) => hashes[name]?.bytes !== manifest.files[name]?.bytes);
  if (without !== undefined) throw new Error(`its hashes are not those of ${without}`);
}

/** The manifest belongs to this copy of the disk layer from now on. */
async function renew(folder: string, manifest: Manifest, epoch: number): Promise<void> {
  const [layer, checkpoint] = [join(folder, diskName), join(folder, checkpointName)];
  const diskLayer = diskLayerOf(layer);
  if (manifest.diskLayer?.bytes !== diskLayer.bytes)
    throw new Error("its disk layer has another size than when it was saved");
  await syncFileAndTimes(layer);
  const path = join(checkpoint, fileNames.manifest);
  await writeJson(path, encodeManifest({ ...manifest, epoch, diskLayer }), { durable: true });
  await syncFolder(checkpoint);
  await syncFolder(folder);
}
