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
import { unrecordedProtocol } from "../../agent/protocol.ts";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import { missingFeatures } from "../../vmm/cpu-features.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { jsonText, readJson, sha256Of, syncFile, syncFolder } from "./files.ts";

export const manifestFormat = 1;

export interface FileRecord {
  bytes: number;
  /** Always there for files up to 1 MiB; the verifier adds those of larger files later. */
  sha256?: string;
}

export interface Manifest {
  format: typeof manifestFormat;
  kind: "base" | "template" | "pause";
  machine: Machine;
  /** The built-in image below everything. */
  image: { name: string; hash: string };
  /** The agent in the saved memory. */
  agent?: { protocol: number };
  /** ISO 8601. */
  createdAt: string;
  files: Record<string, FileRecord>;
}

/** The version of the agent protocol that the saved agent speaks. */
export function protocolOf(manifest: Pick<Manifest, "agent"> | undefined): number {
  return manifest?.agent?.protocol ?? unrecordedProtocol;
}

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

/**
 * Lists the named files of `folder` in its manifest and syncs all of them and the folder, concurrently, when everything is
 * written. `hashAll`: also files above 1 MiB.
 */
export async function writeManifest(
  folder: string,
  about: Pick<Manifest, "kind" | "machine" | "image">,
  names: string[],
  { hashAll, pending = {} }: { hashAll: boolean; pending?: Readonly<Record<string, PendingFile>> },
): Promise<Manifest> {
  const writing = Object.values(pending).map(({ written }) => written);
  for (const written of writing) written.catch(() => {}); // seen below, unless something else fails first
  const files: Record<string, FileRecord> = {};
  for (const name of names) files[name] = await recordOf(folder, name, hashAll, pending[name]);
  const manifest: Manifest = { format: manifestFormat, ...about, createdAt: new Date().toISOString(), files };
  const listing = writeFile(join(folder, fileNames.manifest), jsonText(manifest), { mode: 0o600 });
  await allSettledOrThrow([listing, ...writing]);
  for (const [name, { bytes }] of Object.entries(pending)) requireSize(join(folder, name), bytes);
  const syncing = [fileNames.manifest, ...names].map((name) => syncFile(join(folder, name)));
  await allSettledOrThrow([...syncing, syncFolder(folder)]);
  return manifest;
}

/** Checked while the guest can still continue: a wrong size found at the resume would lose the capsule. */
function requireSize(path: string, bytes: number): void {
  const { size } = statSync(path);
  if (size !== bytes) throw new Error(`${path} has become ${size} bytes instead of ${bytes}`);
}

/** Synchronous, because a file that was just written is read from the page cache. */
async function recordOf(folder: string, name: string, hashAll: boolean, pending?: PendingFile): Promise<FileRecord> {
  const path = join(folder, name);
  if (pending !== undefined && pending.bytes > alwaysHashedBytes && !hashAll) return { bytes: pending.bytes };
  await pending?.written;
  const { size } = statSync(path);
  if (size <= alwaysHashedBytes) return { bytes: size, sha256: hash("sha256", readFileSync(path)) };
  return { bytes: size, ...(hashAll ? { sha256: await sha256Of(path) } : {}) };
}

/**
 * Reads a checkpoint's manifest and checks what is cheap: shape, sizes, and the hashes of small files.
 * Undefined when there is no checkpoint; throws CapsuleError("internal_error") when it is damaged.
 */
export async function openCheckpoint(folder: string): Promise<Manifest | undefined> {
  const manifest = await readJson<Manifest>(join(folder, fileNames.manifest)).catch((cause: unknown) => {
    throw damaged(folder, "its manifest cannot be read", cause);
  });
  if (manifest === undefined) return undefined;
  if (manifest.format !== manifestFormat) throw damaged(folder, `its format is ${String(manifest.format)}`);
  for (const [name, record] of Object.entries(manifest.files)) {
    const found = await stat(join(folder, name)).catch((cause: unknown) => {
      throw damaged(folder, `${name} is missing`, cause);
    });
    if (found.size !== record.bytes) throw damaged(folder, `${name} has ${found.size} bytes, not ${record.bytes}`);
    if (record.sha256 !== undefined && record.bytes <= alwaysHashedBytes) await verify(folder, name, record.sha256);
  }
  return manifest;
}

/** Reads every hashed file of a checkpoint and compares the hashes. Rejects with an AbortError when `signal` fires. */
export async function verifyHashes(folder: string, manifest: Manifest, signal?: AbortSignal): Promise<void> {
  for (const [name, record] of Object.entries(manifest.files)) {
    if (record.sha256 !== undefined) await verify(folder, name, record.sha256, signal);
  }
}

/**
 * Throws CapsuleError("conflict") when a VM saved on `saved` cannot be restored on `now`. QEMU's build is not compared: when the
 * saving one is lost, another one of the same version restores.
 */
export function requireSameMachine(saved: Machine, now: Machine, what: string): void {
  const { cpuFeatures, qemuBuild: _, ...same } = saved;
  const keys = Object.keys(same) as (keyof typeof same)[];
  const differing = keys.filter((key) => saved[key] !== now[key]);
  const lacking = cpuFeatures === undefined ? [] : missingFeatures(cpuFeatures, now.cpuFeatures ?? "");
  if (differing.length === 0 && lacking.length === 0) return;
  const list =
    differing.length === 0
      ? `this machine's processor lacks ${lacking.join(", ")}`
      : differing.map((key) => `${key} ${saved[key]} there, ${now[key]} here`).join("; ");
  throw new CapsuleError("conflict", `${what} was saved on another machine: ${list}`);
}

async function verify(folder: string, name: string, sha256: string, signal?: AbortSignal): Promise<void> {
  if ((await sha256Of(join(folder, name), signal)) !== sha256)
    throw damaged(folder, `the checksum of ${name} is wrong`);
}

function damaged(folder: string, why: string, cause?: unknown): CapsuleError {
  const name = folder.split("/").slice(-2).join("/");
  return new CapsuleError("internal_error", `the checkpoint ${name} is damaged: ${why}`, { cause });
}
