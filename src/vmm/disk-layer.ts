/** A blank's disk: given its layer, and nothing again, while the device that shows it stays as it is. */
import { allSettledOrThrow } from "./all-settled.ts";
import { disk, layer, layerName, placeholderDisk, placeholderName } from "./qemu-args.ts";
import type { Qmp } from "./qmp.ts";

/** Puts the layer at `path`, as QEMU sees it, in the place of nothing. */
export async function attachLayer(qmp: Qmp, path: string): Promise<void> {
  await allSettledOrThrow([
    qmp.command("blockdev-add", layer(path)),
    qmp.command("blockdev-reopen", { options: [disk] }),
  ]);
}

/** Takes it back. What stood in its place before has slept since the devices were loaded, so there is a new nothing. */
export async function detachLayer(qmp: Qmp, diskBytes: number): Promise<void> {
  await qmp.command("blockdev-del", { "node-name": placeholderName });
  await qmp.command("blockdev-add", placeholderDisk(diskBytes));
  await qmp.command("blockdev-reopen", { options: [{ ...disk, file: placeholderName }] });
  await qmp.command("blockdev-del", { "node-name": layerName });
}
