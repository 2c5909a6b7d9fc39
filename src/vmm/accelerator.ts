/**
 * Hardware virtualization or software emulation. That /dev/kvm opens says little: there are machines where it makes VMs
 * in which no stock kernel gets past its first line. So KVM counts only when the real kernel has booted on it, all the way to
 * the agent's first message. The answer, and what else had to be measured, is kept until this machine boots again.
 */
import { constants } from "node:fs";
import { open, readFile, rename, writeFile } from "node:fs/promises";
import { CapsuleError } from "../wire/errors.ts";
import { Qemu, type QemuOptions } from "./qemu.ts";
import { measureTscKhz } from "./tsc.ts";
import type { Vmm } from "./vmm.ts";

const probeDeadlineMs = 20_000;

export interface Accelerator {
  kind: "kvm" | "tcg";
  /** The -cpu argument. */
  cpu: string;
  /** Rate of the time stamp counter that guests must be told; null: they know. */
  tscKhz: number | null;
  /** Why this one: a sentence for operators. */
  why: string;
}

export interface Choice {
  program: string;
  /** See qemu-version.ts. */
  version: string;
  wanted: "auto" | "kvm" | "tcg";
  /** File in which the answer is kept. */
  memory: string;
  /** The jail that VMs will run in: a device that is closed to it does not count. */
  jail?: QemuOptions["jail"];
  /** Default: /dev/kvm. */
  device?: string;
  /**
   * Boots a VM and waits for its agent; rejects when it does not come, or when `signal` aborts. The VM is gone when it
   * settles.
   */
  boots(vmm: Vmm, signal: AbortSignal): Promise<void>;
}

interface Remembered {
  bootId: string;
  program: string;
  version: string;
  isJailed: boolean;
  /** Null: not probed. */
  kvm: { works: boolean; why: string } | null;
  /** Null: not measured. */
  tscKhz: number | null;
}

/** Throws CapsuleError when KVM is wanted and does not work. */
export async function chooseAccelerator(choice: Choice): Promise<Accelerator> {
  const known = await recall(choice);
  if (choice.wanted !== "tcg") {
    if (known.kvm === null) {
      known.kvm = await probe(choice);
      await remember(choice.memory, known);
    }
    if (known.kvm.works) return onKvm(known.kvm.why);
    if (choice.wanted === "kvm") throw new CapsuleError("internal_error", `KVM was asked for, and ${known.kvm.why}`);
  }
  if (known.tscKhz === null) {
    known.tscKhz = await measureTscKhz(choice.program);
    await remember(choice.memory, known);
  }
  const why = known.kvm === null || choice.wanted === "tcg" ? "software emulation was asked for" : known.kvm.why;
  // Without erms and fsrm the guest's kernel copies by words; emulation does the "fast" byte copies byte by byte.
  return { kind: "tcg", cpu: "max,-erms,-fsrm", tscKhz: known.tscKhz, why };
}

function onKvm(why: string): Accelerator {
  return { kind: "kvm", cpu: "host", tscKhz: null, why };
}

async function probe(choice: Choice): Promise<{ works: boolean; why: string }> {
  const { program, version, jail, device = "/dev/kvm", boots } = choice;
  try {
    await (await open(device, constants.O_RDWR)).close();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return {
      works: false,
      why: code === "ENOENT" ? `${device} does not exist` : `${device} cannot be opened (${code})`,
    };
  }
  const signal = AbortSignal.timeout(probeDeadlineMs);
  try {
    await boots(new Qemu({ program, version, accelerator: onKvm("being probed"), jail }), signal);
    return { works: true, why: `a VM booted with ${device}` };
  } catch (error) {
    const reason = signal.aborted ? `it did not within ${probeDeadlineMs / 1_000} s` : reasonOf(error);
    return { works: false, why: `a VM did not boot with ${device}: ${reason}` };
  }
}

/** What went wrong at the bottom of it. */
function reasonOf(error: unknown): string {
  const { cause } = (error ?? {}) as { cause?: unknown };
  return cause === undefined ? String(error) : reasonOf(cause);
}

/** What is known since this machine booted; about this very QEMU, or nothing. */
async function recall({ program, version, jail, memory }: Choice): Promise<Remembered> {
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  const isJailed = jail !== undefined;
  const fresh: Remembered = { bootId, program, version, isJailed, kvm: null, tscKhz: null };
  try {
    const kept = JSON.parse(await readFile(memory, "utf8")) as Remembered;
    const isSame = kept.program === program && kept.version === version && kept.isJailed === isJailed;
    return isSame && kept.bootId === bootId ? kept : fresh;
  } catch {
    return fresh; // none yet, or damaged: everything in it can be found out again
  }
}

async function remember(path: string, known: Remembered): Promise<void> {
  await writeFile(`${path}.new`, `${JSON.stringify(known, null, 1)}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
}
