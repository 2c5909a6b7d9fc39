/** Opens this machine: its QEMU, accelerator, jail and built-in images. */
import { constants } from "node:fs";
import { access, rm } from "node:fs/promises";
import { join } from "node:path";
import { chooseAccelerator } from "../vmm/accelerator.ts";
import { Jail, type JailOptions } from "../vmm/jail/jail.ts";
import { programsOf } from "../vmm/machine/qemu-program.ts";
import { requireJailable } from "../vmm/machine/qemu-version.ts";
import { newNonce } from "../vmm/process.ts";
import type { Accelerator, Vmm } from "../vmm/vmm.ts";
import type { ReadinessCheck } from "./capacity/readiness.ts";
import type { Paths } from "./disk/paths.ts";
import type { Connect } from "./guest.ts";
import { bootImage } from "./images/boot.ts";
import { ImageStore } from "./images/image-store.ts";
import type { Image } from "./images/images.ts";
import { QemuBuilds } from "./qemu-builds/qemu-builds.ts";
import { lackedAccelerator, QemuVmms, type Vmms } from "./qemu-builds/vmms.ts";

export interface MachineOptions {
  paths: Paths;
  /** QEMU's program. */
  qemu: string;
  wanted: "auto" | "kvm" | "tcg";
  /** Longest boot of the KVM probe. */
  probeDeadlineMs: number;
  /** The CPU model under KVM. */
  cpu: string;
  /** Null: no jail, by explicit configuration. */
  jail: JailOptions | null;
  connect: Connect;
  /** Called before a step that can take long. */
  progress: (step: string) => void;
  /** Called when QEMU cannot be kept or renewed, or most of what is saved waits for KVM. */
  onProblem: (what: string, error: unknown) => void;
}

export interface ThisMachine {
  vmm: Vmms;
  builds: QemuBuilds;
  accelerator: Accelerator;
  jail: Jail | undefined;
  images: ImageStore;
  /** Files without which no VM starts, as sentences about those that are missing. */
  missing: ReadinessCheck;
}

/** The file in the data folder that keeps the choice of accelerator until the machine reboots. */
export const acceleratorName = "accelerator.json";

/** Throws CapsuleError when QEMU, the image or a wanted jail is missing, or KVM is wanted and does not work. */
export async function openMachine(options: MachineOptions): Promise<ThisMachine> {
  const { paths, qemu, wanted, probeDeadlineMs, cpu, progress } = options;
  const images = ImageStore.open(paths.data, options.onProblem);
  const image = images.default;
  paths.create();
  const accept = (version: string) => (options.jail === null ? undefined : requireJailable(version));
  const builds = await QemuBuilds.open({ paths, program: qemu, accept, onProblem: options.onProblem });
  const program = builds.current;
  const jail = options.jail === null ? undefined : await Jail.open(options.jail);
  const boots = async (vmm: Vmm, signal: AbortSignal) => {
    progress("trying hardware virtualization: booting a VM with it");
    await tryBoot(options, vmm, image, signal);
  };
  const cacheFile = join(paths.data, acceleratorName);
  const probe = { program, wanted, probeDeadlineMs, cpu, jail, cacheFile, boots };
  const chosen = await chooseAccelerator(probe);
  const vmm = new QemuVmms({ builds, accelerator: chosen, jail, onProblem: options.onProblem });
  const lack = await lackedAccelerator(paths, vmm);
  if (lack !== undefined) options.onProblem(lack, undefined);
  const accelerator = { ...chosen, why: lack === undefined ? chosen.why : `${chosen.why}; ${lack}` };
  const missing = () => missingFiles({ builds, image, jail });
  return { vmm, builds, accelerator, jail, images, missing };
}

interface NeededFiles {
  builds: QemuBuilds;
  image: Image;
  jail: Jail | undefined;
}

async function missingFiles({ builds, image, jail }: NeededFiles): Promise<string[]> {
  const reasons: string[] = [];
  for (const path of programsOf(builds.current)) {
    const isUsable = await access(path, constants.X_OK).then(...asBoolean);
    if (!isUsable) reasons.push(`QEMU's program ${path} is missing or may not be run`);
  }
  for (const path of jail?.missingTools() ?? []) reasons.push(`the jail's program ${path} is missing`);
  for (const path of [image.kernel, image.initrd, image.root]) {
    if (!(await access(path).then(...asBoolean))) reasons.push(`the image's file ${path} is missing`);
  }
  return reasons;
}

const asBoolean = [() => true, () => false] as const;

async function tryBoot(options: MachineOptions, vmm: Vmm, image: Image, signal: AbortSignal): Promise<void> {
  const { paths, connect } = options;
  const nonce = newNonce();
  const folder = paths.scratch(`probe-${nonce}`);
  const machine = vmm.machine(1, 512);
  try {
    const about = { name: "probe", nonce, deadlineMs: options.probeDeadlineMs };
    const { vm, agent } = await bootImage({ vmm, connect, image, machine, folder, signal, ...about });
    agent.close();
    await vm.kill();
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
