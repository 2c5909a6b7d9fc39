/**
 * Merges a disk layer with its backing layer, so that its only backing file is the root disk. The layer comes from a
 * QEMU that may be compromised, so no privileged process parses it: its header is checked first, and qemu-img reads the
 * rest in a jail like QEMU's.
 */
import { open, stat } from "node:fs/promises";
import { dirname, relative } from "node:path";
import { CapsuleError } from "../wire/errors.ts";
import { copyDeadlineMs } from "./copy-deadline.ts";
import type { Jail } from "./jail/jail.ts";
import { type ProgramFiles, programFilesOf } from "./jail/program-files.ts";
import { runHelper } from "./oom-score.ts";
import { type Overlay, overlayProblem } from "./qcow2.ts";
import { layerLimits } from "./qemu-profile.ts";

const headerBytes = 65_536;

export interface LayerMerge {
  /** A copy that no QEMU has open. It is changed in place and belongs to the service afterwards. */
  layer: string;
  /** The backing layer, of a base or a template. */
  parent: string;
  /** The root disk, the backing file of `parent`. */
  root: string;
  /** Size of the guest's disk; undefined: that of the root disk. */
  diskBytes?: number | undefined;
}

/** When the signal fires the merge ends, and its reason is thrown. */
export type MergeLayer = (merge: LayerMerge, signal?: AbortSignal) => Promise<void>;

export async function layerMerger(jail: Jail | undefined): Promise<MergeLayer> {
  const qemuImg = await programFilesOf("qemu-img");
  return async (merge, signal) => {
    const { layer, parent, root } = merge;
    const folder = dirname(layer);
    const sizeBytes = merge.diskBytes ?? (await stat(root)).size;
    await requireOverlay(layer, { sizeBytes, backingFile: relative(folder, parent), backingFormat: "qcow2" });
    const backingFile = relative(folder, root);
    const argv = [qemuImg.program, "rebase", "-f", "qcow2", "-F", "raw", "-b", backingFile, layer];
    const deadlineMs = copyDeadlineMs((await stat(parent)).size);
    if (jail === undefined) await runUnjailed(argv, { deadlineMs, signal });
    else await runJailed(jail, qemuImg, argv, merge, { diskBytes: sizeBytes, deadlineMs, signal });
    await requireOverlay(layer, { sizeBytes, backingFile, backingFormat: "raw" });
  };
}

interface Bounds {
  deadlineMs: number;
  signal: AbortSignal | undefined;
}

async function runUnjailed([program = "", ...args]: string[], { deadlineMs, signal }: Bounds): Promise<void> {
  await runHelper(program, args, { timeout: deadlineMs, maxBuffer: 1 << 20, signal });
}

async function runJailed(
  jail: Jail,
  qemuImg: ProgramFiles,
  argv: string[],
  merge: LayerMerge,
  { diskBytes, ...bounds }: Bounds & { diskBytes: number },
): Promise<void> {
  const readOnly = [...qemuImg.readOnly, merge.parent, merge.root];
  const profile = { readOnly, writable: [merge.layer], deviceNodes: [], folder: dirname(merge.layer) };
  await jail.run(argv, { ...profile, limits: layerLimits(diskBytes) }, bounds);
  await using file = await open(merge.layer, "r");
  await file.chown(process.geteuid!(), process.getegid!());
}

/** Throws CapsuleError("agent_error") unless the file's header is that of this overlay. */
export async function requireOverlay(path: string, overlay: Overlay): Promise<void> {
  await using file = await open(path, "r");
  const { buffer, bytesRead } = await file.read(Buffer.alloc(headerBytes), 0, headerBytes, 0);
  const problem = overlayProblem(buffer.subarray(0, bytesRead), overlay);
  if (problem !== undefined)
    throw new CapsuleError("agent_error", `The disk layer's header has been changed: ${problem}.`);
}
