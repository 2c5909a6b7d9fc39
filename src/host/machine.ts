/** Opens this machine: its QEMU, accelerator, jail and built-in images. */
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { access, rm } from "node:fs/promises";
import { join } from "node:path";
import { chooseAccelerator } from "../vmm/accelerator.ts";
import { Jail, type JailOptions } from "../vmm/jail/jail.ts";
import { findProgram } from "../vmm/jail/program-files.ts";
import { Qemu } from "../vmm/qemu.ts";
import { installedProgram } from "../vmm/qemu-program.ts";
import { requireJailable } from "../vmm/qemu-version.ts";
import type { Accelerator, Vmm } from "../vmm/vmm.ts";
import type { ReadinessCheck } from "./capacity/readiness.ts";
import type { Paths } from "./disk/paths.ts";
import type { Connect } from "./guest.ts";
import { bootImage } from "./images/boot.ts";
import { type Image, loadImage } from "./images/images.ts";

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
}

export interface ThisMachine {
  vmm: Vmm;
  accelerator: Accelerator;
  jail: Jail | undefined;
  images: Image[];
  /** Files without which no VM starts, as sentences about those that are missing. */
  missing: ReadinessCheck;
}

/** The file in the data folder that keeps the choice of accelerator until the machine reboots. */
export const acceleratorName = "accelerator.json";

/** Throws CapsuleError when QEMU, the image or a wanted jail is missing, or KVM is wanted and does not work. */
export async function openMachine(options: MachineOptions): Promise<ThisMachine> {
  const { paths, qemu, wanted, probeDeadlineMs, cpu, progress } = options;
  const image = loadImage(paths.data, "minimal");
  const program = await installedProgram(qemu);
  if (options.jail !== null) requireJailable(program.version);
  const jail = options.jail === null ? undefined : await Jail.open(options.jail);
  const boots = async (vmm: Vmm, signal: AbortSignal) => {
    progress("trying hardware virtualization: booting a VM with it");
    await tryBoot(options, vmm, image, signal);
  };
  const cacheFile = join(paths.data, acceleratorName);
  const probe = { program, wanted, probeDeadlineMs, cpu, jail, cacheFile, boots };
  const accelerator = await chooseAccelerator(probe);
  const vmm = new Qemu({ program, accelerator, jail });
  const missing = () => missingFiles({ qemu, image, jail });
  return { vmm, accelerator, jail, images: [image], missing };
}

async function missingFiles({ qemu, image, jail }: { qemu: string; image: Image; jail: Jail | undefined }) {
  const reasons: string[] = [];
  const program = findProgram(qemu);
  const isUsable = program !== undefined && (await access(program, constants.X_OK).then(...asBoolean));
  if (!isUsable) reasons.push(`QEMU's program ${qemu} is missing or may not be run`);
  for (const path of jail?.missingTools() ?? []) reasons.push(`the jail's program ${path} is missing`);
  for (const path of [image.kernel, image.initrd, image.root]) {
    if (!(await access(path).then(...asBoolean))) reasons.push(`the image's file ${path} is missing`);
  }
  return reasons;
}

const asBoolean = [() => true, () => false] as const;

async function tryBoot(options: MachineOptions, vmm: Vmm, image: Image, signal: AbortSignal): Promise<void> {
  const { paths, connect } = options;
  const nonce = randomBytes(16).toString("hex");
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
