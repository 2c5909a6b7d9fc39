/**
 * Merges a disk layer with the one below it, so that it stands on the root disk alone. The layer comes from a QEMU that
 * its guest may have taken over, so nobody with rights opens it: its header is checked first, and qemu-img reads the rest
 * in a jail like QEMU's own.
 */
import { execFile } from "node:child_process";
import { open, stat } from "node:fs/promises";
import { dirname, relative } from "node:path";
import { promisify } from "node:util";
import { CapsuleError } from "../wire/errors.ts";
import type { Jail } from "./jail/jail.ts";
import { type ProgramFiles, programFilesOf } from "./jail/program-files.ts";
import { type Overlay, overlayProblem } from "./qcow2.ts";
import { layerLimits } from "./qemu-profile.ts";

const run = promisify(execFile);
const mergeMs = 120_000;
const headerBytes = 65_536;

export interface LayerMerge {
  /** A copy that no QEMU has in its hands; changed in place, and ours afterwards. */
  layer: string;
  /** The layer below, a base's or a template's. */
  parent: string;
  /** The root disk below that, of which both show every byte. */
  root: string;
}

export type MergeLayer = (merge: LayerMerge) => Promise<void>;

export async function layerMerger(jail: Jail | undefined): Promise<MergeLayer> {
  const view = await programFilesOf("qemu-img");
  return async (merge) => {
    const { layer, parent, root } = merge;
    const folder = dirname(layer);
    const { size: sizeBytes } = await stat(root);
    await requireOverlay(layer, { sizeBytes, backingFile: relative(folder, parent), backingFormat: "qcow2" });
    const backingFile = relative(folder, root);
    const argv = [view.program, "rebase", "-f", "qcow2", "-F", "raw", "-b", backingFile, layer];
    await (jail === undefined ? runFree(argv) : runJailed(jail, view, argv, merge, sizeBytes));
    await requireOverlay(layer, { sizeBytes, backingFile, backingFormat: "raw" });
  };
}

async function runFree([program = "", ...args]: string[]): Promise<void> {
  await run(program, args, { timeout: mergeMs, maxBuffer: 1 << 20 });
}

async function runJailed(
  jail: Jail,
  view: ProgramFiles,
  argv: string[],
  merge: LayerMerge,
  diskBytes: number,
): Promise<void> {
  const readOnly = [...view.readOnly, merge.parent, merge.root];
  const cell = { readOnly, writable: [merge.layer], devices: [], folder: dirname(merge.layer) };
  await jail.run(argv, { ...cell, limits: layerLimits(diskBytes) }, mergeMs);
  await using file = await open(merge.layer, "r");
  await file.chown(process.geteuid!(), process.getegid!());
}

/** Throws CapsuleError("agent_error") unless the file's header is that of this overlay. */
export async function requireOverlay(path: string, overlay: Overlay): Promise<void> {
  await using file = await open(path, "r");
  const { buffer, bytesRead } = await file.read(Buffer.alloc(headerBytes), 0, headerBytes, 0);
  const problem = overlayProblem(buffer.subarray(0, bytesRead), overlay);
  if (problem !== undefined) throw new CapsuleError("agent_error", `The disk layer is not what it was: ${problem}.`);
}
