/** What QEMU may see and use for one VM, and how much of it. */
import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { ProfileLimits, SandboxProfile } from "./jail/jail-args.ts";
import type { ProgramFiles } from "./jail/program-files.ts";
import { devicesName } from "./vm-folder.ts";
import type { VmSpec } from "./vmm.ts";

const mib = 1 << 20;
/** QEMU without its guest's memory: code, translated code (128 MiB), heaps and stacks of its threads. */
const ownBytes = 1_024 * mib;
/** For each CPU of the guest, a thread and what it translates with. */
const perCpuBytes = 16 * mib;
/** QEMU's workers for the disk come and go, 64 at most. */
const ownThreads = 96;
/** And take a CPU and more at times. */
const ownCpus = 2;
/** What a disk layer takes when the guest has written to every byte of the disk: tables beside the data. */
const layerOverheadBytes = 64 * mib;
const openFiles = 256;

/** What becomes of the process: a VM started from its kernel, one that is loaded, or one that is not known yet. */
export type Purpose = "boot" | "restore" | "warm";

/** A saved VM has its kernel in memory already. */
export async function qemuProfile(spec: VmSpec, view: ProgramFiles, purpose: Purpose): Promise<SandboxProfile> {
  const { machine, files } = spec;
  const kernel = purpose === "boot" ? [files.kernel, files.initrd] : [];
  const devices = join(files.dir, devicesName);
  const diskBytes = await sizeOfDisk(spec);
  return {
    readOnly: [...view.readOnly, files.memory, ...files.backing, ...kernel],
    writable: purpose === "warm" ? [devices] : [files.disk, devices],
    handoverDir: purpose === "warm" ? dirname(files.disk) : undefined,
    devices: machine.accelerator === "kvm" ? ["/dev/kvm"] : [],
    folder: files.dir,
    limits: layerLimits(diskBytes, machine.memoryMb * mib, machine.vcpus),
  };
}

/** The disk as the guest sees it has the size of the root disk that its layers end on. */
export async function sizeOfDisk({ files }: VmSpec): Promise<number> {
  const root = files.backing.at(-1);
  return root === undefined ? 0 : (await stat(root)).size;
}

export function memoryBytes({ machine }: VmSpec): number {
  return machine.memoryMb * mib;
}

/** What a VM may take of the machine, besides disk. */
export function vmLimits({ machine }: VmSpec): ProfileLimits {
  return layerLimits(0, machine.memoryMb * mib, machine.vcpus);
}

/** For a program that writes a layer of a disk, with a guest's memory and CPUs if it has one. */
export function layerLimits(diskBytes: number, guestBytes = 0, vcpus = 0): ProfileLimits {
  return {
    fileBytes: diskBytes + Math.ceil(diskBytes / 64) + layerOverheadBytes,
    dataBytes: guestBytes + ownBytes + vcpus * perCpuBytes,
    processes: vcpus + ownThreads,
    cpus: vcpus + ownCpus,
    openFiles,
  };
}
