/**
 * Saving and loading a VM's devices: monitor commands that exchange a file in QEMU's working folder. An incoming migration
 * is possible once per process, before it has run; warm/warm-devices.ts loads them into a process that has.
 */
import { statfs } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { isObject, type Qmp } from "./qmp.ts";
import { deviceStateName, readDeviceState } from "./vm-folder.ts";
import type { VmSpec } from "./vmm.ts";

const pollMs = 2;
const deadlineMs = 30_000;
/** Deadline of commands that wait until QEMU has written everything in flight for the guest's disk. */
export const flushDeadlineMs = 60_000;
/** A disk with less free space than this is full. */
const fullBytes = 1 << 20;

export async function statusOf(qmp: Qmp, deadlineMs?: number): Promise<string> {
  const answer = await qmp.command("query-status", {}, deadlineMs);
  return isObject(answer) ? String(answer.status) : "unknown";
}

/** The devices' state of a QEMU that is stopped, or was told to stop. Throws CapsuleError("no_space") when the disk is full. */
export async function saveDeviceState(qmp: Qmp, { name, files: { dir } }: VmSpec): Promise<Buffer> {
  try {
    await qmp.command("xen-save-devices-state", { filename: deviceStateName, live: false }, flushDeadlineMs);
    return readDeviceState(dir);
  } catch (error) {
    // QEMU gives no reason.
    const { bavail, bsize } = await statfs(dir);
    if (bavail * bsize > fullBytes) throw error;
    throw new CapsuleError("no_space", `there is no room for the devices of ${name}`, { cause: error });
  }
}

/** Loads devices from `uri` into a QEMU that waits for a migration. */
export async function loadDeviceState(qmp: Qmp, uri: string): Promise<void> {
  await qmp.command("migrate-incoming", { uri });
  await until("Devices were not loaded", async () => (await statusOf(qmp)) !== "inmigrate");
}

/** Polls until `isDone`; throws an Error with `complaint` at the deadline. */
export async function until(complaint: string, isDone: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + deadlineMs;
  while (!(await isDone())) {
    if (performance.now() > deadline) throw new Error(`${complaint} within ${deadlineMs} ms`);
    await delay(pollMs);
  }
}
