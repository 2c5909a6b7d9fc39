/**
 * The ways of a VM's devices out of a QEMU and into one: over its monitor, by a file in the folder that QEMU works in. An
 * incoming migration happens once in a process's life, and to one that has not run. A snapshot can be loaded at any time:
 * QEMU resets the machine, and then reads devices like a migration.
 */
import { statfs } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { allSettledOrThrow } from "./all-settled.ts";
import { isObject, type Qmp } from "./qmp.ts";
import { devicesName, readDevices } from "./vm-folder.ts";
import type { VmSpec } from "./vmm.ts";
import { snapshotTag } from "./warm/qcow2-snapshot.ts";

const pollMs = 2;
const deadlineMs = 30_000;
/** Of what may have to wait until all that the guest's disk has in flight is written. */
export const flushDeadlineMs = 60_000;
/** A disk with less room than this is full. */
const fullBytes = 1 << 20;
/** Of what QEMU says. */
const saidLength = 1_000;
const node = "saved";
const job = "load";

export async function statusOf(qmp: Qmp, deadlineMs?: number): Promise<string> {
  const answer = await qmp.command("query-status", {}, deadlineMs);
  return isObject(answer) ? String(answer.status) : "unknown";
}

/** Of a QEMU that is stopped, or was told to stop. Throws CapsuleError("no_space") when the disk is full. */
export async function saveDevices(qmp: Qmp, { name, files: { dir } }: VmSpec): Promise<Buffer> {
  try {
    await qmp.command("xen-save-devices-state", { filename: devicesName, live: false }, flushDeadlineMs);
    return readDevices(dir);
  } catch (error) {
    // QEMU says only that it failed.
    const { bavail, bsize } = await statfs(dir);
    if (bavail * bsize > fullBytes) throw error;
    throw new CapsuleError("no_space", `there is no room for the devices of ${name}`, { cause: error });
  }
}

/** From `uri` into a QEMU that waits for a migration. */
export async function loadDevices(qmp: Qmp, uri: string): Promise<void> {
  await qmp.command("migrate-incoming", { uri });
  await until("Devices were not loaded", async () => (await statusOf(qmp)) !== "inmigrate");
}

/** From the file as a snapshot, see qcow2-snapshot.ts, into a QEMU that is stopped. */
export async function reloadDevices(qmp: Qmp): Promise<void> {
  const isLoaded = async () => {
    const { status, error } = (await jobs(qmp)).find(({ id }) => id === job) ?? {};
    if (error !== undefined) throw new Error(`Devices cannot be loaded: ${String(error).slice(0, saidLength)}`);
    return status === "concluded";
  };
  const file = { driver: "file", filename: devicesName };
  const [, , isDone] = await allSettledOrThrow([
    qmp.command("blockdev-add", { driver: "qcow2", "node-name": node, cache: { "no-flush": true }, file }, deadlineMs),
    qmp.command("snapshot-load", { "job-id": job, tag: snapshotTag, vmstate: node, devices: [node] }, deadlineMs),
    isLoaded(),
  ]);
  if (!isDone) await until("Devices were not loaded", isLoaded);
  await allSettledOrThrow([
    qmp.command("job-dismiss", { id: job }),
    qmp.command("blockdev-del", { "node-name": node }),
  ]);
}

/** Of a QEMU that is stopped, and stays so. */
export async function resetDevices(qmp: Qmp): Promise<void> {
  await qmp.command("set-action", { reboot: "reset" });
  await qmp.command("system_reset");
  await until("The machine was not reset", async () => (await statusOf(qmp)) === "prelaunch");
  await qmp.command("set-action", { reboot: "shutdown" });
}

async function jobs(qmp: Qmp): Promise<Record<string, unknown>[]> {
  const answer = await qmp.command("query-jobs", {}, deadlineMs);
  return Array.isArray(answer) ? answer.filter(isObject) : [];
}

async function until(complaint: string, isSo: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + deadlineMs;
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`${complaint} within ${deadlineMs} ms`);
    await delay(pollMs);
  }
}
