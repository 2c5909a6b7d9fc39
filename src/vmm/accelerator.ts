/**
 * Chooses hardware virtualization or software emulation. On some machines /dev/kvm opens, but no kernel boots in its
 * VMs. So KVM is used only after the image's kernel has booted on it, up to the agent's first message. The result and
 * the rate of the time stamp counter are cached in a file until this machine boots again. A probe that reached its
 * deadline has no result, and the next start tries again.
 */
import { spawn } from "node:child_process";
import { constants } from "node:fs";
import { mkdtemp, open, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { Qemu, type QemuOptions } from "./qemu.ts";
import { Qmp } from "./qmp.ts";
import type { Accelerator, Vmm } from "./vmm.ts";

export interface AcceleratorOptions {
  program: string;
  /** QEMU's version, see qemu-version.ts. */
  version: string;
  wanted: "auto" | "kvm" | "tcg";
  /** File in which the result is cached. */
  cacheFile: string;
  /** The jail of the VMs. A device that it may not open is not used. */
  jail?: QemuOptions["jail"];
  probeDeadlineMs: number;
  /** Default: /dev/kvm. */
  device?: string;
  /**
   * Boots a VM and waits for its agent. Rejects when the agent does not answer or `signal` aborts. Ends the VM in both
   * cases.
   */
  boots(vmm: Vmm, signal: AbortSignal): Promise<void>;
}

/** The cache file's content. */
interface Findings {
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
export async function chooseAccelerator(options: AcceleratorOptions): Promise<Accelerator> {
  const known = await readCache(options);
  let { kvm } = known;
  if (options.wanted !== "tcg") {
    if (kvm === null) {
      const { isLate, ...result } = await probe(options);
      kvm = result;
      known.kvm = isLate ? null : result;
      await writeCache(options.cacheFile, known);
    }
    if (kvm.works) return onKvm(kvm.why);
    if (options.wanted === "kvm") throw new CapsuleError("internal_error", `KVM was required, but ${kvm.why}`);
  }
  if (known.tscKhz === null) {
    known.tscKhz = await measureTscKhz(options.program);
    await writeCache(options.cacheFile, known);
  }
  const why = kvm === null || options.wanted === "tcg" ? "software emulation was configured" : kvm.why;
  // With erms or fsrm the guest's kernel copies memory by `rep movsb`, which QEMU emulates byte by byte.
  return { kind: "tcg", cpu: "max,-erms,-fsrm", tscKhz: known.tscKhz, why };
}

function onKvm(why: string): Accelerator {
  return { kind: "kvm", cpu: "host", tscKhz: null, why };
}

interface Probed {
  works: boolean;
  why: string;
  /** The VM was still booting at the deadline. */
  isLate: boolean;
}

async function probe(options: AcceleratorOptions): Promise<Probed> {
  const { program, version, jail, device = "/dev/kvm", probeDeadlineMs, boots } = options;
  try {
    await (await open(device, constants.O_RDWR)).close();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return {
      works: false,
      isLate: false,
      why: code === "ENOENT" ? `${device} does not exist` : `${device} cannot be opened (${code})`,
    };
  }
  const signal = AbortSignal.timeout(probeDeadlineMs);
  try {
    await boots(new Qemu({ program, version, accelerator: onKvm("probe"), jail }), signal);
    return { works: true, isLate: false, why: `a VM booted with ${device}` };
  } catch (error) {
    const isLate = signal.aborted;
    const late = `no answer within ${probeDeadlineMs / 1_000} s (CAPSULE_PROBE_DEADLINE_MS)`;
    return { works: false, isLate, why: `a VM did not boot with ${device}: ${isLate ? late : reasonOf(error)}` };
  }
}

/** The innermost cause. */
function reasonOf(error: unknown): string {
  const { cause } = (error ?? {}) as { cause?: unknown };
  return cause === undefined ? String(error) : reasonOf(cause);
}

/** The cached findings, if they were made with this QEMU and jail since this machine booted; else empty ones. */
async function readCache({ program, version, jail, cacheFile }: AcceleratorOptions): Promise<Findings> {
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  const isJailed = jail !== undefined;
  const fresh: Findings = { bootId, program, version, isJailed, kvm: null, tscKhz: null };
  try {
    const cached = JSON.parse(await readFile(cacheFile, "utf8")) as Findings;
    const isSame = cached.program === program && cached.version === version && cached.isJailed === isJailed;
    return isSame && cached.bootId === bootId ? cached : fresh;
  } catch {
    return fresh; // no file yet, or a damaged one: everything in it can be measured again
  }
}

async function writeCache(path: string, known: Findings): Promise<void> {
  await writeFile(`${path}.new`, `${JSON.stringify(known, null, 1)}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
}

// ---- The rate of the time stamp counter

const tscSpanMs = 1_000;
/** An empty machine starts in some 100 ms; only an overloaded machine needs much longer. */
const emptyStartDeadlineMs = 60_000;
const pollMs = 5;
const plausibleKhz = { min: 100_000, max: 20_000_000 };

export interface TimerReading {
  ticks: bigint;
  clockNs: bigint;
}

/**
 * Measures the rate of this machine's time stamp counter. Under software emulation the guest reads that counter and
 * needs its rate on the kernel command line (see qemu-args.ts). JavaScript cannot read the counter. QEMU can: the saved
 * state of an empty machine holds the counter and a clock. Two such pairs, 1 s apart, give the rate to a few
 * millionths.
 *
 * In kHz. Takes a little over 1 s.
 */
export async function measureTscKhz(program: string): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), "capsule-tsc-"));
  const args = ["-machine", "none", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-S"];
  const child = spawn(program, [...args, "-qmp", "unix:qmp.sock,server=on,wait=off"], { cwd: folder, stdio: "ignore" });
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()).once("error", () => resolve()));
  try {
    const qmp = await connectWhenReady(join(folder, "qmp.sock"), exited);
    try {
      const state = join(folder, "state");
      const first = await readTimer(qmp, state, pollMs);
      return rateKhz(first, await readTimer(qmp, state, tscSpanMs));
    } finally {
      qmp.close();
    }
  } finally {
    child.kill("SIGKILL");
    await exited;
    await rm(folder, { recursive: true, force: true });
  }
}

export function rateKhz(first: TimerReading, second: TimerReading): number {
  const ticks = Number(second.ticks - first.ticks);
  const khz = Math.round((ticks / Number(second.clockNs - first.clockNs)) * 1e6);
  if (!(khz >= plausibleKhz.min && khz <= plausibleKhz.max)) {
    throw new CapsuleError("internal_error", `The time stamp counter of this machine cannot be measured: ${khz} kHz`);
  }
  return khz;
}

/**
 * Finds the "timer" section in a saved state: name, instance u32, version u32, ticks i64, 8 unused bytes, clock i64.
 */
export function parseTimer(state: Buffer): TimerReading {
  const name = state.indexOf("\x05timer", 0, "latin1");
  const at = name + 6 + 8;
  if (name === -1 || at + 24 > state.length) {
    throw new CapsuleError("internal_error", "QEMU saved no timer section; the time stamp counter cannot be measured");
  }
  return { ticks: state.readBigInt64BE(at), clockNs: state.readBigInt64BE(at + 16) };
}

/** Lets the counter run for `runMs` and reads it. */
async function readTimer(qmp: Qmp, path: string, runMs: number): Promise<TimerReading> {
  await qmp.command("cont");
  await delay(runMs);
  await qmp.command("stop");
  await qmp.command("xen-save-devices-state", { filename: path, live: false });
  return parseTimer(await readFile(path));
}

async function connectWhenReady(path: string, exited: Promise<void>): Promise<Qmp> {
  let hasExited = false;
  void exited.then(() => {
    hasExited = true;
  });
  const deadline = performance.now() + emptyStartDeadlineMs;
  for (;;) {
    try {
      return await Qmp.connect(path, () => {}, emptyStartDeadlineMs);
    } catch (cause) {
      if (hasExited || performance.now() > deadline) {
        throw new CapsuleError("internal_error", "QEMU did not start an empty machine", { cause });
      }
      await delay(pollMs);
    }
  }
}
