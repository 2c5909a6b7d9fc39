/** The rate at which QEMU passes the guest's writes on to its disk layer. Reads and discards are not limited. */

import { disk } from "./machine/qemu-args.ts";
import { isObject, type Qmp } from "./qmp.ts";

/** `bytesPerSec` 0: no limit. Writes that wait are completed when the VM is stopped, and when the limit is removed. */
export async function limitWrites(qmp: Qmp, bytesPerSec: number): Promise<void> {
  const others = { bps: 0, bps_rd: 0, iops: 0, iops_rd: 0, iops_wr: 0 };
  await qmp.command("block_set_io_throttle", { id: await diskDevice(qmp), bps_wr: bytesPerSec, ...others });
}

/** The path of the guest's disk among QEMU's objects: the device has no id, and VMs of earlier daemons cannot be given one. */
async function diskDevice(qmp: Qmp): Promise<string> {
  const blocks = await qmp.command("query-block");
  for (const block of Array.isArray(blocks) ? blocks : []) {
    if (!isObject(block) || !isObject(block.inserted) || typeof block.qdev !== "string") continue;
    if (block.inserted["node-name"] === disk["node-name"]) return block.qdev;
  }
  throw new Error("QEMU names no disk of the guest");
}
