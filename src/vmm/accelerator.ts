/**
 * Chooses hardware virtualization or software emulation. On some machines /dev/kvm opens, but no kernel boots in its
 * VMs. So KVM is used only after the image's kernel has booted on it, up to the agent's first message. A success and the
 * rate of the time stamp counter are cached in a file until this machine boots again. No failure is cached: it may have
 * been a busy machine, a device in use or a driver not loaded yet, so each start tries again.
 */
import { constants } from "node:fs";
import { open, readFile, rename, writeFile } from "node:fs/promises";
import { CapsuleError } from "../wire/errors.ts";
import { hostCpuFeatures } from "./machine/cpu-features.ts";
import type { QemuProgram } from "./machine/qemu-program.ts";
import { measureTscKhz } from "./machine/tsc.ts";
import { Qemu, type QemuOptions } from "./qemu.ts";
import type { Accelerator, Vmm } from "./vmm.ts";

export interface AcceleratorOptions {
  program: QemuProgram;
  wanted: "auto" | "kvm" | "tcg";
  /** File in which the result is cached. */
  cacheFile: string;
  /** The jail of the VMs. A device that it may not open is not used. */
  jail?: QemuOptions["jail"];
  probeDeadlineMs: number;
  /** The CPU model under KVM. */
  cpu: string;
  /** Measures the rate of the time stamp counter. Default: by QEMU. */
  rate?: typeof measureTscKhz;
  /** Default: asks QEMU. */
  features?: (command: QemuProgram["command"]) => Promise<string>;
  /** Default: /dev/kvm. */
  device?: string;
  /**
   * Boots a VM and waits for its agent. Rejects when the agent does not answer or `signal` aborts. Ends the VM in both
   * cases.
   */
  boots(vmm: Vmm, signal: AbortSignal): Promise<void>;
}

/** The reason of a failed boot is cut to so many characters. */
const reasonMaxLength = 1_000;

/** The cache file's content. */
interface Findings {
  bootId: string;
  /** QEMU's build, or its command line if it has none. */
  program: string;
  version: string;
  isJailed: boolean;
  /** The model that was probed. Absent in files of the last release, which probed "host". */
  cpu?: string;
  /** Null: not probed, or without success. Files of the last release also have failures, which are not used. */
  kvm: { works: boolean; why: string } | null;
  /** The features behind "host" under KVM. Absent: not read yet. */
  cpuFeatures?: string;
  /** Null: not measured. */
  tscKhz: number | null;
}

/** Throws CapsuleError when KVM is wanted and does not work. */
export async function chooseAccelerator(options: AcceleratorOptions): Promise<Accelerator> {
  const known = await readCache(options);
  let { kvm } = known;
  if (options.wanted !== "tcg") {
    if (kvm?.works !== true) {
      kvm = await probe(options);
      known.kvm = kvm.works ? kvm : null;
      await writeCache(options.cacheFile, known);
    }
    if (kvm.works) {
      const { tscKhz, why } = await readRateIfPossible(options, known, kvm.why);
      return { ...onKvm(options.cpu, why, tscKhz), ...(await readFeatures(options, known)) };
    }
    if (options.wanted === "kvm") throw new CapsuleError("internal_error", `KVM was required, but ${kvm.why}`);
  }
  const tscKhz = await readRate(options, known);
  const why = kvm === null || options.wanted === "tcg" ? "software emulation was configured" : kvm.why;
  return emulation(tscKhz, why);
}

export function emulation(tscKhz: number | null, why: string): Accelerator {
  // With erms or fsrm the guest's kernel copies memory by `rep movsb`, which QEMU emulates byte by byte.
  return { kind: "tcg", cpu: "max,-erms,-fsrm", tscKhz, why };
}

/** Under KVM the rate is only compared with that of saved VMs, and QEMU may lack TCG, by which it is measured. */
async function readRateIfPossible(
  options: AcceleratorOptions,
  known: Findings,
  why: string,
): Promise<Pick<Accelerator, "tscKhz" | "why">> {
  try {
    return { tscKhz: await readRate(options, known), why };
  } catch (error) {
    const unknown = `the rate of the time stamp counter could not be measured: ${reasonOf(error)}`;
    return { tscKhz: null, why: `${why}; ${unknown}` };
  }
}

/** Measured once. */
async function readRate(options: AcceleratorOptions, known: Findings): Promise<number> {
  if (known.tscKhz !== null) return known.tscKhz;
  const tscKhz = await (options.rate ?? measureTscKhz)(options.program.command);
  await writeCache(options.cacheFile, Object.assign(known, { tscKhz }));
  return tscKhz;
}

/** The features that a guest with the model "host" finds; read once. */
async function readFeatures(options: AcceleratorOptions, known: Findings): Promise<Pick<Accelerator, "cpuFeatures">> {
  if (options.cpu !== "host") return {};
  if (known.cpuFeatures === undefined) {
    known.cpuFeatures = await (options.features ?? hostCpuFeatures)(options.program.command);
    await writeCache(options.cacheFile, known);
  }
  return { cpuFeatures: known.cpuFeatures };
}

/** With `enforce`, QEMU refuses to start where the host lacks a feature of the named model, instead of leaving it out. */
function onKvm(cpu: string, why: string, tscKhz: number | null = null): Accelerator {
  return { kind: "kvm", cpu: cpu === "host" ? cpu : `${cpu},enforce`, tscKhz, why };
}

async function probe(options: AcceleratorOptions): Promise<{ works: boolean; why: string }> {
  const { program, jail, device = "/dev/kvm", probeDeadlineMs, cpu, boots } = options;
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
    await boots(new Qemu({ program, accelerator: onKvm(cpu, "probe"), jail }), signal);
    return { works: true, why: `a VM booted with ${device}` };
  } catch (error) {
    const late = `no answer within ${probeDeadlineMs / 1_000} s (CAPSULE_PROBE_DEADLINE_MS)`;
    return { works: false, why: `a VM did not boot with ${device}: ${signal.aborted ? late : reasonOf(error)}` };
  }
}

/** The innermost cause, cut off: QEMU has a line for each feature that the processor lacks. */
function reasonOf(error: unknown): string {
  const { cause, message } = (error ?? {}) as Partial<Error>;
  return cause === undefined ? (message ?? String(error)).slice(0, reasonMaxLength) : reasonOf(cause);
}

/** The cached findings, if they were made with this QEMU and jail since this machine booted; else empty ones. */
async function readCache({ program: qemu, jail, cpu, cacheFile }: AcceleratorOptions): Promise<Findings> {
  const { version, build, command } = qemu;
  const program = build ?? command.join(" ");
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  const isJailed = jail !== undefined;
  const fresh: Findings = { bootId, program, version, isJailed, cpu, kvm: null, tscKhz: null };
  try {
    const cached = JSON.parse(await readFile(cacheFile, "utf8")) as Findings;
    const isSame = cached.program === program && cached.version === version && cached.isJailed === isJailed;
    if (!isSame || cached.bootId !== bootId) return fresh;
    return (cached.cpu ?? "host") === cpu ? cached : { ...cached, cpu, kvm: null };
  } catch {
    return fresh; // no file yet, or a damaged one: everything in it can be measured again
  }
}

async function writeCache(path: string, known: Findings): Promise<void> {
  await writeFile(`${path}.new`, `${JSON.stringify(known, null, 1)}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
}
