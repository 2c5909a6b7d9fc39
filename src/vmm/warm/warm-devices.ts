/**
 * Changing the devices of a warm process over its monitor: its disk gets a layer, and loses it again; its machine is reset,
 * and loaded from a snapshot. A snapshot can be loaded at any time, where a migration is possible once per process: QEMU
 * resets the machine and then reads the devices as from a migration.
 */
import { allSettledOrThrow } from "../all-settled.ts";
import { statusOf, until } from "../devices.ts";
import {
  disk,
  layer,
  layerName,
  placeholderDisk,
  placeholderName,
  qtestName,
  qtestPortName,
} from "../machine/qemu-args.ts";
import { isObject, type Qmp } from "../qmp.ts";
import { deviceStateName } from "../vm-folder.ts";
import { snapshotTag } from "./qcow2-snapshot.ts";

const deadlineMs = 30_000;
/** An error that QEMU reports is cut to so many characters. */
const maxErrorLength = 1_000;
const node = "saved";
const job = "load";

/** Replaces the placeholder under the disk with the layer at `path`, as QEMU sees it. */
export async function attachLayer(qmp: Qmp, path: string): Promise<void> {
  await allSettledOrThrow([
    qmp.command("blockdev-add", layer(path)),
    qmp.command("blockdev-reopen", { options: [disk] }),
  ]);
}

/** Puts a placeholder back. The first one is inactive since devices were loaded, so it is replaced by a new one. */
export async function detachLayer(qmp: Qmp, diskBytes: number): Promise<void> {
  await qmp.command("blockdev-del", { "node-name": placeholderName });
  await qmp.command("blockdev-add", placeholderDisk(diskBytes));
  await qmp.command("blockdev-reopen", { options: [{ ...disk, file: placeholderName }] });
  await qmp.command("blockdev-del", { "node-name": layerName });
}

/** Loads the file of the devices as a snapshot, see qcow2-snapshot.ts, into a QEMU that is stopped. After a failure it is unusable. */
export async function reloadDevices(qmp: Qmp): Promise<void> {
  const isLoaded = async () => {
    const { status, error } = (await jobs(qmp)).find(({ id }) => id === job) ?? {};
    if (error !== undefined) throw new Error(`Devices cannot be loaded: ${String(error).slice(0, maxErrorLength)}`);
    return status === "concluded";
  };
  const file = { driver: "file", filename: deviceStateName };
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

/** Resets the machine of a QEMU that is stopped, which stays stopped: no device refers to guest memory afterwards. */
export async function resetDevices(qmp: Qmp): Promise<void> {
  await qmp.command("set-action", { reboot: "reset" });
  await qmp.command("system_reset");
  await until("The machine was not reset", async () => (await statusOf(qmp)) === "prelaunch");
  await qmp.command("set-action", { reboot: "shutdown" });
}

/** Removes qtest, which can write guest memory. */
export async function removeQtest(qmp: Qmp): Promise<void> {
  await allSettledOrThrow([
    qmp.command("object-del", { id: qtestName }),
    qmp.command("chardev-remove", { id: qtestPortName }),
  ]);
}

async function jobs(qmp: Qmp): Promise<Record<string, unknown>[]> {
  const answer = await qmp.command("query-jobs", {}, deadlineMs);
  return Array.isArray(answer) ? answer.filter(isObject) : [];
}
