/** Weaknesses of this machine that make VMs slower or less confined, each with the command that changes it. */
import { readFileSync, statSync } from "node:fs";

const page = "docs/KVM.md";
const reasonMaxLength = 200;
const openToVms = "sudo groupadd --system --force kvm && sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm";

/** As `/healthz` gives it. */
export interface Engine {
  accelerator: string;
  accelerator_reason: string;
  jail: { mode: string; missing: string[] };
}

/** The parts of the machine that KVM depends on. */
export interface KvmState {
  /** The setting CAPSULE_ACCELERATOR. */
  wanted: "auto" | "kvm" | "tcg";
  /** /dev/kvm; undefined: there is none. */
  device: { mode: number; gid: number } | undefined;
  /** Whether the processor offers virtualization to this system. */
  hasVirtualization: boolean;
  isRoot: boolean;
}

export interface Weakness {
  word: "slow" | "warning";
  text: string;
}

export function weaknessesOf(engine: Engine, state: KvmState): Weakness[] {
  const warnings = engine.jail.missing.map((text) => ({ word: "warning" as const, text: `VMs run without ${text}` }));
  if (engine.accelerator === "kvm") return warnings;
  const { reason, remedy } = kvmAdvice(engine, state);
  return [{ word: "slow", text: `KVM is not used: ${reason}; ${remedy}` }, ...warnings];
}

function kvmAdvice({ accelerator_reason, jail }: Engine, { wanted, device, hasVirtualization, isRoot }: KvmState) {
  if (wanted === "tcg") return { reason: "CAPSULE_ACCELERATOR is tcg", remedy: "unset it" };
  if (device === undefined) {
    return hasVirtualization
      ? { reason: "/dev/kvm does not exist", remedy: "sudo modprobe kvm_intel || sudo modprobe kvm_amd" }
      : { reason: "the processor offers no virtualization to this system", remedy: `see ${page}` };
  }
  const permissions = `mode ${(device.mode & 0o777).toString(8)}, group ${device.gid}`;
  // The user of a jail is in the device's group. Root's group would give it more than the device.
  const isOpenToGroup = device.gid !== 0 && (device.mode & 0o060) === 0o060;
  const isOpenToAll = (device.mode & 0o006) === 0o006;
  if (isOpenToGroup && !isRoot && accelerator_reason.includes("(EACCES)"))
    return {
      reason: "this user is not in the group of /dev/kvm",
      remedy: 'sudo usermod -aG kvm "$USER", then sign in again',
    };
  if (!isOpenToAll && !isOpenToGroup && (jail.mode !== "off" || !isRoot))
    return { reason: `the users of the VMs may not open /dev/kvm (${permissions})`, remedy: openToVms };
  const reason = accelerator_reason.replace(/\s+/g, " ").slice(0, reasonMaxLength);
  return { reason, remedy: `see ${page}` };
}

export function kvmState(wanted: KvmState["wanted"]): KvmState {
  return {
    wanted,
    device: statSync("/dev/kvm", { throwIfNoEntry: false }),
    hasVirtualization: /^flags\s*:.* (vmx|svm)( |$)/m.test(readFileSync("/proc/cpuinfo", "utf8")),
    isRoot: process.getuid?.() === 0,
  };
}
