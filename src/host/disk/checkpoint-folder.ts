/**
 * Checkpoint folders: a saved VM on disk. A folder is made in `work/`, fsynced, and renamed, so it is complete or absent.
 *
 *   of a base or template:  manifest.json · state · memory · disk.qcow2     self-contained on top of the image
 *   of a paused capsule:    manifest.json · state · memory.diff             relative to the capsule's parent;
 *                                                                           its disk layer stays where it is
 */
import { hash } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import { hasNetwork } from "../../vmm/machine/parts.ts";
import { type Hashing, hashPieces, pieceBytes } from "../../vmm/memory/piece-hashes.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { NewerFormatError } from "./fields.ts";
import { jsonText, readJson, sha256Of, syncFile, syncFolder } from "./files.ts";
import { encodeHashes, hashFiles, readHashes } from "./hashes.ts";
import {
  type DiskLayer,
  decodeManifest,
  encodeManifest,
  type FileRecord,
  hashesName,
  type Manifest,
  newManifest,
  type Saved,
} from "./manifest.ts";

/** Names of the files in a self-contained checkpoint. */
export const fileNames = { manifest: "manifest.json", state: "state", memory: "memory", disk: "disk.qcow2" } as const;
/** Name of the memory file in a paused capsule's checkpoint. */
export const diffName = "memory.diff";

const alwaysHashedBytes = 1 << 20;

/** A file whose size is known while its end is still being written. */
export interface PendingFile {
  bytes: number;
  written: Promise<unknown>;
}

export interface ManifestOptions {
  hashAll: boolean;
  pending?: Readonly<Record<string, PendingFile>>;
  signal?: AbortSignal | undefined;
}

/**
 * Lists the named files of `folder` in its manifest and syncs all of them and the folder, concurrently, when everything is
 * written. `hashAll`: with the hashes of files above 1 MiB, in a file that is listed too; the signal ends the hashing.
 */
export async function writeManifest(
  folder: string,
  saved: Saved,
  names: string[],
  { hashAll, pending = {}, signal }: ManifestOptions,
): Promise<Manifest> {
  const writing = Object.values(pending).map(({ written }) => written);
  for (const written of writing) written.catch(() => {}); // seen below, unless something else fails first
  const files: Record<string, FileRecord> = {};
  for (const name of names) files[name] = await recordOf(folder, name, pending[name]);
  if (hashAll) await allSettledOrThrow(writing);
  if (hashAll) files[hashesName] = await writeHashes(folder, largeFiles({ files }), { signal });
  const manifest = newManifest(saved, files);
  const listing = writeFile(join(folder, fileNames.manifest), jsonText(encodeManifest(manifest)), { mode: 0o600 });
  await allSettledOrThrow([listing, ...writing]);
  for (const [name, { bytes }] of Object.entries(pending)) requireSize(join(folder, name), bytes);
  const syncing = [fileNames.manifest, ...Object.keys(files)].map((name) => syncFile(join(folder, name)));
  await allSettledOrThrow([...syncing, syncFolder(folder)]);
  return manifest;
}

/** Checked while the guest can still continue: a wrong size found at the resume would lose the capsule. */
function requireSize(path: string, bytes: number): void {
  const { size } = statSync(path);
  if (size !== bytes) throw new Error(`${path} has become ${size} bytes instead of ${bytes}`);
}

/** Synchronous, because a file that was just written is read from the page cache. */
async function recordOf(folder: string, name: string, pending?: PendingFile): Promise<FileRecord> {
  const path = join(folder, name);
  if (pending !== undefined && pending.bytes > alwaysHashedBytes) return { bytes: pending.bytes };
  await pending?.written;
  const { size } = statSync(path);
  if (size <= alwaysHashedBytes) return { bytes: size, sha256: hash("sha256", readFileSync(path)) };
  return { bytes: size };
}

/** The manifest has this file's hash at any size, and so identifies the checkpoint. */
async function writeHashes(folder: string, names: string[], hashing: Hashing): Promise<FileRecord> {
  const paths = Object.fromEntries(names.map((name) => [name, join(folder, name)]));
  const text = encodeHashes(await hashFiles(paths, hashing));
  await writeFile(join(folder, hashesName), text, { mode: 0o600 });
  return { bytes: Buffer.byteLength(text), sha256: hash("sha256", text) };
}

/** Files that the manifest lists without a hash. */
export function largeFiles({ files }: Pick<Manifest, "files">): string[] {
  return Object.keys(files).filter((name) => files[name]?.sha256 === undefined);
}

/** Identifies a base or template: another one may take its path. */
export function parentHash({ files }: Manifest): string | null {
  return files[fileNames.memory]?.sha256 ?? files[hashesName]?.sha256 ?? null;
}

/** The size and time of a disk layer. Its times are exact while the CPUs are stopped and QEMU has flushed its writes. */
export function diskLayerOf(path: string): DiskLayer {
  const { size, mtimeNs } = statSync(path, { bigint: true });
  return { bytes: Number(size), mtimeNs };
}

/**
 * A checkpoint's manifest; undefined when there is none. Throws CapsuleError: "internal_error" when it is damaged, "conflict"
 * when a later release wrote it.
 */
export async function readManifest(folder: string): Promise<Manifest | undefined> {
  try {
    const value = await readJson<unknown>(join(folder, fileNames.manifest));
    return value === undefined ? undefined : decodeManifest(value);
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    if (error instanceof NewerFormatError) {
      throw new CapsuleError("conflict", `the checkpoint ${nameOf(folder)} cannot be opened: ${error.message}`);
    }
    throw damaged(folder, `its manifest cannot be used: ${error.message}`, error);
  }
}

/** Whether the saved machine has a network port; false also where that cannot be read. */
export async function hasNetworkIn(folder: string): Promise<boolean> {
  const manifest = await readManifest(folder).catch(() => undefined);
  return manifest !== undefined && hasNetwork(manifest.machine.devices);
}

/** As `readManifest`, and checks what is cheap: sizes, and the hashes of small files. */
export async function openCheckpoint(folder: string): Promise<Manifest | undefined> {
  const manifest = await readManifest(folder);
  if (manifest === undefined) return undefined;
  for (const [name, record] of Object.entries(manifest.files)) {
    const found = await stat(join(folder, name)).catch((cause: unknown) => {
      throw damaged(folder, `${name} is missing`, cause);
    });
    if (found.size !== record.bytes) throw damaged(folder, `${name} has ${found.size} bytes, not ${record.bytes}`);
    if (record.sha256 !== undefined && record.bytes <= alwaysHashedBytes) await verify(folder, name, record.sha256);
  }
  return manifest;
}

/** Reads every hashed file of a checkpoint and compares the hashes. Rejects when the signal fires. */
export async function verifyHashes(folder: string, manifest: Manifest, hashing: Hashing = {}): Promise<void> {
  for (const [name, { sha256 }] of Object.entries(manifest.files)) {
    if (sha256 !== undefined) await verify(folder, name, sha256, hashing);
  }
  const hashes = (await readHashes(folder)) ?? {};
  for (const name of largeFiles(manifest)) {
    const expected = hashes[name];
    if (expected === undefined) continue;
    const found = await hashPieces(join(folder, name), hashing);
    const wrong = found.sha256.findIndex((sha256, index) => sha256 !== expected.sha256[index]);
    if (wrong !== -1) throw damaged(folder, `${name} differs from its checksum after byte ${wrong * pieceBytes}`);
  }
}

async function verify(folder: string, name: string, sha256: string, hashing: Hashing = {}): Promise<void> {
  if ((await sha256Of(join(folder, name), hashing)) !== sha256)
    throw damaged(folder, `the checksum of ${name} is wrong`);
}

function damaged(folder: string, why: string, cause?: unknown): CapsuleError {
  return new CapsuleError("internal_error", `the checkpoint ${nameOf(folder)} is damaged: ${why}`, { cause });
}

function nameOf(folder: string): string {
  return folder.split("/").slice(-2).join("/");
}
