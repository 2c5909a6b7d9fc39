/**
 * Processes that outlive the daemon. A QEMU runs in its own session and may be no child of this daemon, so it is
 * identified through /proc: pid and start time identify a process, the nonce in its command line tells which VM it is.
 */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { open, readdir } from "node:fs/promises";
import type { Socket } from "node:net";
import { constants, getPriority, setPriority } from "node:os";
import { basename } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { namesVm, nonceBelow } from "./machine/qemu-args.ts";
import { killFirst } from "./oom-score.ts";
import type { VmProcess } from "./vmm.ts";

/** Length of the kept end of a process's standard error. */
const stderrTailBytes = 8_192;
/** Time for output that is still in the pipe when the process has ended. */
const stderrDrainMs = 200;
const killPollMs = 1;
/** A killed QEMU ends only after its pending disk writes, which may take long on a slow disk. */
const killDeadlineMs = 60_000;
const bwrapDeadlineMs = 1_000;
const scansMax = 10;

/** Names one VM, in its command line and its journal. */
export function newNonce(): string {
  return randomBytes(16).toString("hex");
}

/** By this, guests run at a lower priority than the service, and at the same priority among each other. */
const niceness = 5;
const leastPriority = constants.priority.PRIORITY_LOW;

/**
 * The read part of a command line. A process can make its own hundreds of MiB long, by prctl(PR_SET_MM). A VM's name is well
 * before this point, also in the command line of its bubblewrap process.
 */
const commandLineBytes = 65_536;

/** Standard error is closed after this many bytes: a compromised QEMU may write without end. */
const maxStderrBytes = 1 << 20;

export interface Spawned {
  process: VmProcess;
  /** This daemon's ends of the pipes in `inherited`, in order. */
  pipes: Socket[];
  /** Resolves when the process ends. */
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** The end of its standard error. To be called after its end: waits up to 200 ms for the pipe to drain. */
  stderrTail(): Promise<string>;
}

/** A descriptor, or a new pipe to this daemon. */
export type Inherited = number | "pipe";

/**
 * Starts a program in its own session. It inherits a pipe as standard error, because a file could fill the disk, the
 * descriptors in `inherited` from 3 on, and no others.
 */
export function spawnDetached(argv: string[], cwd: string, inherited: Inherited[] = []): Spawned {
  const [program = "", ...args] = argv;
  const child = spawn(program, args, {
    cwd,
    detached: true,
    stdio: ["ignore", "ignore", "pipe", ...inherited],
    env: { PATH: process.env.PATH ?? "/usr/bin:/bin", LANG: "C.UTF-8" },
  });
  child.unref();
  child.on("error", () => {}); // reported below, by the missing pid
  yieldToService(child.pid);
  const exited = new Promise<Awaited<Spawned["exited"]>>((resolve) => {
    child.once("exit", (code, signal) => resolve({ code, signal }));
  });
  const pipes = inherited.flatMap((each, index) => (each === "pipe" ? [child.stdio[index + 3] as Socket] : []));
  for (const pipe of pipes) pipe?.on("error", () => {});
  const stderrTail = readTail(child.stderr as Socket | null); // Node makes pipes as pairs of sockets
  const startTicks = child.pid === undefined ? null : startTicksOf(child.pid);
  if (child.pid === undefined || startTicks === null) {
    throw new CapsuleError("agent_error", `The VM could not be started: ${program} did not run.`);
  }
  return { process: { pid: child.pid, startTicks }, pipes, exited, stderrTail };
}

/** Lowers a process's priority and makes the kernel kill it first. Its later children inherit both. */
export function yieldToService(pid: number | undefined): void {
  killFirst(pid);
  try {
    if (pid !== undefined) setPriority(pid, Math.min(getPriority() + niceness, leastPriority));
  } catch {} // the process has ended already
}

function readTail(stderr: Socket | null): () => Promise<string> {
  let tail = Buffer.alloc(0);
  stderr?.on("data", (chunk: Buffer) => {
    tail = Buffer.concat([tail, chunk]).subarray(-stderrTailBytes);
    if (stderr.bytesRead > maxStderrBytes) stderr.destroy();
  });
  stderr?.on("error", () => {});
  stderr?.unref();
  const closed = new Promise<void>((resolve) => stderr?.once("close", resolve));
  return async () => {
    await Promise.race([closed, delay(stderrDrainMs)]);
    return tail.toString("utf8").trim();
  };
}

/** True while the process exists; false for a zombie. */
export function isAlive({ pid, startTicks }: VmProcess): boolean {
  return startTicksOf(pid) === startTicks;
}

/**
 * Field 22 of /proc/<pid>/stat; null for no process or a zombie. A zombie whose other threads have not ended yet counts
 * as a process: it holds its files and their locks.
 */
export function startTicksOf(pid: number): number | null {
  return statOf(pid)?.startTicks ?? null;
}

export function statOf(pid: number): Stat | null {
  try {
    return parseStat(readFileSync(`/proc/${pid}/stat`, "latin1"));
  } catch {
    return null;
  }
}

/** Unit of the CPU times in /proc, 1/100 s on every architecture of Linux. */
const msPerTick = 10;

/** CPU time of the process since its begin; undefined: it has ended. */
export function cpuMsOf(process: VmProcess): number | undefined {
  const stat = statOf(process.pid);
  return stat === null || stat.startTicks !== process.startTicks ? undefined : stat.spentTicks * msPerTick;
}

export interface Stat {
  parent: number;
  startTicks: number;
  /** CPU time of all threads, in user and kernel mode; clock ticks. */
  spentTicks: number;
}

export function parseStat(stat: string): Stat | null {
  // The second field is the program's name in parentheses; it may contain parentheses and spaces.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const [state, parent, threads, startTicks] = [fields[0], Number(fields[1]), Number(fields[17]), Number(fields[19])];
  const hasEnded = state === "X" || (state === "Z" && threads <= 1);
  if (hasEnded || !Number.isSafeInteger(startTicks)) return null;
  return { parent, startTicks, spentTicks: Number(fields[11]) + Number(fields[12]) };
}

/** True when the process exists and its command line contains the nonce. */
export async function isVm(process: VmProcess, nonce: string): Promise<boolean> {
  return isAlive(process) && namesVm(await argumentsOf(process.pid), nonce) && isAlive(process);
}

/**
 * Processes whose command line contains the nonce. For a jailed VM these are QEMU and then the bubblewrap process that
 * waits for it.
 */
export async function findByNonce(nonce: string): Promise<VmProcess[]> {
  const found: (VmProcess & { parent: number })[] = [];
  for await (const { pid, args } of commandLines()) {
    const stat = namesVm(args, nonce) ? statOf(pid) : null;
    if (stat !== null) found.push({ pid, startTicks: stat.startTicks, parent: stat.parent });
  }
  const children = (process: VmProcess) => found.filter(({ parent }) => parent === process.pid).length;
  return found.sort((a, b) => children(a) - children(b)).map(({ pid, startTicks }) => ({ pid, startTicks }));
}

/** VMs whose folder is below `folder`, with their nonces. */
export async function findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
  const found: { process: VmProcess; nonce: string }[] = [];
  for await (const { pid, args } of commandLines()) {
    const nonce = nonceBelow(args, folder);
    const startTicks = nonce === null ? null : startTicksOf(pid);
    if (nonce !== null && startTicks !== null) found.push({ process: { pid, startTicks }, nonce });
  }
  return found;
}

/** The arguments of every process. */
async function* commandLines(): AsyncGenerator<{ pid: number; args: string[] }> {
  const buffer = Buffer.allocUnsafe(commandLineBytes);
  for (const entry of await readdir("/proc")) {
    if (/^\d+$/.test(entry)) yield { pid: Number(entry), args: await argumentsOf(Number(entry), buffer) };
  }
}

/** The arguments in the first 64 KiB of a process's command line; none when it cannot be read. */
async function argumentsOf(pid: number, buffer = Buffer.allocUnsafe(commandLineBytes)): Promise<string[]> {
  try {
    await using file = await open(`/proc/${pid}/cmdline`);
    const { bytesRead } = await file.read(buffer, 0, commandLineBytes, null);
    return buffer.toString("utf8", 0, bytesRead).split("\0");
  } catch {
    return [];
  }
}

/** Kills a process and the bubblewrap process that waits for it, and waits until both have ended. Idempotent. */
export async function endProcess(victim: VmProcess): Promise<void> {
  const parent = parentOf(victim);
  kill(victim);
  const bwrap = await bwrapAt(parent);
  if (!(await isGoneWithin(victim, killDeadlineMs))) {
    throw new CapsuleError("internal_error", `Process ${victim.pid} did not end after being killed.`);
  }
  if (bwrap !== null && !(await isGoneWithin(bwrap, bwrapDeadlineMs))) kill(bwrap);
}

/** Ends every process with this nonce. The next scan finds processes that they fork meanwhile. */
export async function endByNonce(nonce: string): Promise<void> {
  for (let scans = 0; scans < scansMax; scans++) {
    const found = await findByNonce(nonce);
    if (found.length === 0) return;
    for (const process of found) await endProcess(process);
  }
}

/** Ends the process when `signal` fires, or now if it has fired already, until disposed of. */
export function endOnAbort(process: VmProcess, signal: AbortSignal | undefined): Disposable {
  const end = () => void endProcess(process).catch(() => {}); // the caller ends it again and gets the error
  signal?.addEventListener("abort", end);
  if (signal?.aborted) end();
  return { [Symbol.dispose]: () => signal?.removeEventListener("abort", end) };
}

/** Kills the bubblewrap process outside the jail, which only waits for the process inside. */
export async function endBwrap(process: VmProcess): Promise<void> {
  const bwrap = await bwrapAt(parentOf(process));
  if (bwrap !== null) kill(bwrap);
}

function parentOf(process: VmProcess): VmProcess | null {
  const stat = statOf(process.pid);
  if (stat === null || stat.startTicks !== process.startTicks) return null;
  const startTicks = startTicksOf(stat.parent);
  return startTicks === null ? null : { pid: stat.parent, startTicks };
}

/**
 * The parent, if it is bubblewrap and no ancestor of this process. A container made by bubblewrap adopts the VMs that an
 * earlier daemon in it left; ending it would end this daemon.
 */
async function bwrapAt(parent: VmProcess | null): Promise<VmProcess | null> {
  if (parent === null || ancestors().has(parent.pid)) return null;
  const [program = ""] = await argumentsOf(parent.pid);
  return basename(program) === "bwrap" ? parent : null;
}

/** The pids of all processes above this one that /proc shows. */
function ancestors(): Set<number> {
  const found = new Set<number>();
  let pid = process.ppid;
  while (pid > 0 && !found.has(pid)) {
    found.add(pid);
    pid = statOf(pid)?.parent ?? 0;
  }
  return found;
}

function kill(victim: VmProcess): void {
  if (!isAlive(victim)) return;
  try {
    process.kill(victim.pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** True as soon as the process has ended; false when it still runs after `deadlineMs`. */
export async function isGoneWithin(process: VmProcess, deadlineMs: number): Promise<boolean> {
  const deadline = performance.now() + deadlineMs;
  while (isAlive(process)) {
    if (performance.now() > deadline) return false;
    await delay(killPollMs);
  }
  return true;
}
