/**
 * The JSON files of a capsule's folder: `capsule.json`, its template and machine; and `vm.json`, the journal of
 * the VM that was started for it. The journal is written before QEMU is spawned and again as soon as its pid is known, so
 * that after a crash in between the next daemon finds the process by its nonce.
 */
import { existsSync } from "node:fs";
import { rm, unlink, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import type { Machine, VmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { isCount, isObject, isSha256, isText, NewerFormatError, requireFormat } from "./fields.ts";
import { isMissing, readJson, syncFolder, writeJson } from "./files.ts";
import { decodeMachine, encodeMachine } from "./machine-record.ts";

/** The release before wrote format 1, whose machine has other fields. */
const capsuleFormat = 2;

export interface CapsuleFile {
  /** Folder of the checkpoint it started from, relative to the data folder; `origin` in the file. */
  parent: string;
  /** SHA-256 of its memory file: another checkpoint could take the same path. */
  parentSha256: string | null;
  image: { name: string; hash: string };
  machine: Machine;
  /** Size of its disk, where that is larger than its image's. */
  diskBytes?: number;
  /** True: it was booted on another machine than its parent's. */
  hasOwnMachine?: boolean;
}

export interface VmFile {
  nonce: string;
  process: VmProcess | null;
  /** The version of the agent protocol that its guest speaks; absent: see `unrecordedProtocol`. */
  protocol?: number;
  /**
   * The revision of the checkpoint that it continues; null: it started from a template, or from a checkpoint without a revision.
   * Absent in journals of the release before.
   */
  restores?: number | null;
}

export type OnDamage = (folder: string, why: string) => void;

export const diskName = "disk.qcow2";
export const checkpointName = "checkpoint";
export const capsuleName = "capsule.json";
/** The journal of a VM that was started for the capsule. */
export const vmName = "vm.json";
/** There while the capsule is stopped: without a row, its disk is then worth keeping. */
export const stoppedName = "stopped";
/** The files of a paused capsule; all other files in its folder belong to a VM. */
export const capsuleParts = [capsuleName, diskName, checkpointName];

/**
 * Undefined when there is none. Throws CapsuleError: "internal_error" when it is damaged, "conflict" when a later release wrote
 * it.
 */
export async function readCapsule(folder: string): Promise<CapsuleFile | undefined> {
  try {
    const value = await readJson<unknown>(join(folder, capsuleName));
    return value === undefined ? undefined : decodeCapsule(value);
  } catch (cause) {
    const [what, why] = [`${capsuleName} of ${basename(folder)}`, (cause as Error).message];
    if (cause instanceof NewerFormatError) throw new CapsuleError("conflict", `${what} cannot be opened: ${why}`);
    throw new CapsuleError("internal_error", `${what} cannot be used: ${why}`, { cause });
  }
}

function decodeCapsule(value: unknown): CapsuleFile {
  if (!isObject(value)) throw new Error("it is no object");
  const { format, origin, originSha256, image } = value;
  requireFormat(format, capsuleFormat);
  if (!isText(origin)) throw new Error("it has no origin");
  if (originSha256 !== null && !isSha256(originSha256)) throw new Error("its originSha256 is no SHA-256");
  if (!isObject(image) || !isText(image.name) || !isText(image.hash)) throw new Error("it has no image");
  const { name, hash } = image;
  const machine = decodeMachine(value.machine, format);
  const { diskBytes } = value;
  if (diskBytes !== undefined && !isCount(diskBytes)) throw new Error("its diskBytes is no number of bytes");
  const size = diskBytes === undefined ? {} : { diskBytes };
  const own = value.hasOwnMachine === true ? { hasOwnMachine: true } : {};
  return { parent: origin, parentSha256: originSha256, image: { name, hash }, machine, ...size, ...own };
}

export function writeCapsule(
  folder: string,
  { parent, parentSha256, image, machine, diskBytes, hasOwnMachine }: CapsuleFile,
): Promise<void> {
  const value = {
    format: capsuleFormat,
    origin: parent,
    originSha256: parentSha256,
    image,
    machine: encodeMachine(machine),
    diskBytes,
    hasOwnMachine,
  };
  return writeJson(join(folder, capsuleName), value, { durable: true });
}

/**
 * A journal that cannot be read counts as none, and is reported to `onDamage`. It is written without an fsync, since no VM
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
  const { nonce, process, protocol, restores } = found ?? {};
  if (typeof nonce !== "string") return false;
  if (protocol !== undefined && typeof protocol !== "number") return false;
  if (restores !== undefined && restores !== null && typeof restores !== "number") return false;
  return process === null || (typeof process?.pid === "number" && typeof process.startTicks === "number");
}

export function writeVm(folder: string, vm: VmFile): Promise<void> {
  return writeJson(join(folder, vmName), vm, { durable: false });
}

export async function removeVm(folder: string): Promise<void> {
  await unlink(join(folder, vmName)).catch((error: unknown) => {
    if (!isMissing(error)) throw error;
  });
}

/** Removes a capsule's checkpoint durably. Most running capsules have none, so that is checked first, without a thread. */
export async function removeCheckpoint(folder: string): Promise<void> {
  const checkpoint = join(folder, checkpointName);
  if (!existsSync(checkpoint)) return;
  await rm(checkpoint, { recursive: true });
  await syncFolder(folder);
}

/** Notes durably that the capsule has stopped, with its disk written. */
export async function markStopped(folder: string): Promise<void> {
  await writeFile(join(folder, stoppedName), "", { mode: 0o600 });
  await syncFolder(folder);
}

/** Call before the capsule runs again. True: it was stopped. */
export async function unmarkStopped(folder: string): Promise<boolean> {
  const wasStopped = existsSync(join(folder, stoppedName));
  if (wasStopped) await rm(join(folder, stoppedName), { force: true });
  return wasStopped;
}
