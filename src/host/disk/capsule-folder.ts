/**
 * What a capsule's folder says about it: `capsule.json`, what it was made from, written once; and `vm.json`, the VM that
 * was started for it. The journal is written before QEMU is spawned and again as soon as its pid is known, so that a
 * daemon that dies in between can still find the process by its nonce.
 */
import { rm, unlink } from "node:fs/promises";
import { join } from "node:path";
import type { Machine, VmProcess } from "../../vmm/vmm.ts";
import { isMissing, readJson, syncFolder, writeJson } from "./files.ts";

export interface CapsuleFile {
  format: 1;
  /** Folder of the checkpoint it started from, relative to the data folder. */
  origin: string;
  /** Its memory file's hash: a path alone could come to mean another checkpoint. */
  originSha256: string | null;
  image: { name: string; hash: string };
  machine: Machine;
}

export interface VmFile {
  nonce: string;
  process: VmProcess | null;
}

export type OnDamage = (folder: string, why: string) => void;

export const diskName = "disk.qcow2";
export const checkpointName = "checkpoint";
const capsuleName = "capsule.json";
const vmName = "vm.json";
/** What a paused capsule is made of; the rest of its folder belongs to a VM. */
export const capsuleParts = [capsuleName, diskName, checkpointName];

export function readCapsule(folder: string): Promise<CapsuleFile | undefined> {
  return readJson<CapsuleFile>(join(folder, capsuleName));
}

export function writeCapsule(folder: string, capsule: CapsuleFile): Promise<void> {
  return writeJson(join(folder, capsuleName), capsule, { durable: true });
}

/**
 * A journal that cannot be read counts as none, and `onDamage` is told of it. It is written without an fsync, since no VM
 * outlives a power cut, so a power cut may leave it empty.
 */
export async function readVm(folder: string, onDamage?: OnDamage): Promise<VmFile | undefined> {
  try {
    const vm = await readJson<VmFile>(join(folder, vmName));
    if (vm === undefined || isVmFile(vm)) return vm;
    onDamage?.(folder, `${vmName} does not name a VM`);
  } catch (error) {
    onDamage?.(folder, `${vmName} cannot be read: ${String(error)}`);
  }
  return undefined;
}

function isVmFile(found: Partial<VmFile> | null): found is VmFile {
  const { nonce, process } = found ?? {};
  if (typeof nonce !== "string") return false;
  return process === null || (typeof process?.pid === "number" && typeof process.startTicks === "number");
}

export function writeVm(folder: string, vm: VmFile): Promise<void> {
  return writeJson(join(folder, vmName), vm, { durable: false });
}

export async function forgetVm(folder: string): Promise<void> {
  await unlink(join(folder, vmName)).catch((error: unknown) => {
    if (!isMissing(error)) throw error;
  });
}

/** Takes a capsule's checkpoint away for good. */
export async function forgetCheckpoint(folder: string): Promise<void> {
  await rm(join(folder, checkpointName), { recursive: true, force: true });
  await syncFolder(folder);
}
