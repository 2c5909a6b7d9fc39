/** The sandbox profile of one VM's QEMU: files it may see, and limits. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { ProfileLimits, SandboxProfile } from "./jail/jail-args.ts";
import type { ProgramFiles } from "./jail/program-files.ts";
import { deviceStateName } from "./vm-folder.ts";
import type { VmSpec } from "./vmm.ts";

const mib = 1 << 20;
/** QEMU without guest memory: code, translated code (128 MiB), heaps and stacks. */
const ownBytes = 1_024 * mib;
/** For each CPU of the guest, a thread and its buffers for translation. */
const perCpuBytes = 16 * mib;
/** QEMU has up to 64 worker threads for the disk. */
const ownThreads = 96;
/** CPUs that QEMU's own threads may use. */
const ownCpus = 2;
/** Tables of a disk layer in which every byte of the disk is written. */
const layerOverheadBytes = 64 * mib;
const openFiles = 256;

/** Whether the process boots a kernel, loads a saved VM, or waits for one that is not known yet. */
export type Purpose = "boot" | "restore" | "warm";

/** A saved VM has its kernel in memory already. */
export async function qemuProfile(
  spec: VmSpec,
  program: Pick<ProgramFiles, "readOnly">,
  purpose: Purpose,
  handoverDir?: string,
): Promise<SandboxProfile> {
  const { machine, files } = spec;
  const kernel = purpose === "boot" ? [files.kernel, files.initrd] : [];
  const deviceState = join(files.dir, deviceStateName);
  const diskBytes = await sizeOfDisk(spec);
  return {
    readOnly: [...program.readOnly, files.memory, ...files.backing, ...kernel],
    writable: purpose === "warm" ? [deviceState] : [files.disk, deviceState],
    handoverDir,
    deviceNodes: machine.accelerator === "kvm" ? ["/dev/kvm"] : [],
    folder: files.dir,
    limits: layerLimits(diskBytes, machine.memoryMb * mib, machine.vcpus),
  };
}

/** The guest's disk has the size of the root disk below all its layers, unless it was made larger. */
export async function sizeOfDisk({ files }: VmSpec): Promise<number> {
  if (files.diskBytes !== undefined) return files.diskBytes;
  const root = files.backing.at(-1);
  return root === undefined ? 0 : (await stat(root)).size;
}

export function memoryBytes({ machine }: VmSpec): number {
  return machine.memoryMb * mib;
}

/** Limits of a VM, without its disk. */
export function vmLimits({ machine }: VmSpec): ProfileLimits {
  return layerLimits(0, machine.memoryMb * mib, machine.vcpus);
}

/** Limits of a program that writes a disk layer, and has a guest with this memory and these CPUs, if any. */
export function layerLimits(diskBytes: number, guestBytes = 0, vcpus = 0): ProfileLimits {
  return {
    fileBytes: diskBytes + Math.ceil(diskBytes / 64) + layerOverheadBytes,
    dataBytes: guestBytes + ownBytes + vcpus * perCpuBytes,
    processes: vcpus + ownThreads,
    cpus: vcpus + ownCpus,
    openFiles,
  };
}
