/**
 * Makes a self-contained checkpoint out of a saved capsule: its memory merged with what it started from, its disk layer
 * merged down to the built-in image. Whatever generations came before, the result stands on the image alone.
 */
import { constants } from "node:fs";
import { copyFile } from "node:fs/promises";
import { join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import type { MergeLayer } from "../../vmm/layer-merge.ts";
import { diffName, fileNames, type Manifest, writeManifest } from "../disk/checkpoint-folder.ts";

export interface Capture {
  /** An empty folder to make it in; published by the caller. */
  scratch: string;
  /** The paused capsule's checkpoint. */
  checkpoint: string;
  /** The capsule's disk layer, flushed. */
  disk: string;
  /** Folder of the checkpoint that the capsule started from. */
  origin: string;
  /** The image's root disk. */
  root: string;
  about: Pick<Manifest, "kind" | "machine" | "image">;
  flatten: (base: string, diff: string, out: string) => Promise<void>;
  mergeLayer: MergeLayer;
}

export async function captureTemplate(capture: Capture): Promise<Manifest> {
  const { scratch, checkpoint, origin } = capture;
  await allSettledOrThrow([
    copyFile(join(checkpoint, fileNames.state), join(scratch, fileNames.state)),
    capture.flatten(join(origin, fileNames.memory), join(checkpoint, diffName), join(scratch, fileNames.memory)),
    mergeDisk(capture),
  ]);
  return writeManifest(scratch, capture.about, [fileNames.state, fileNames.memory, fileNames.disk], { hashAll: true });
}

/** The capsule's layer with its parent's merged in, backed by the root disk (relative names: see paths.ts). */
async function mergeDisk({ scratch, disk, origin, root, mergeLayer }: Capture): Promise<void> {
  const layer = join(scratch, fileNames.disk);
  await copyFile(disk, layer, constants.COPYFILE_FICLONE);
  await mergeLayer({ layer, parent: join(origin, fileNames.disk), root });
}
