/**
 * Processes that outlive us. A QEMU is started in its own session and belongs to nobody afterwards, so it is known by what
 * /proc says of it and not by being our child: pid and start time name a process beyond doubt, the nonce in its command
 * line says that it is the one we meant.
 */
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { setPriority } from "node:os";
import { basename } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { namesVm, nonceBelow } from "./qemu-args.ts";
import type { VmProcess } from "./vmm.ts";

/** What is kept of a process's complaints. */
const complaintBytes = 8_192;
const lastWordsMs = 200;
const killPollMs = 1;
/** A killed QEMU with much to write ends when the disk has taken it; an error before that would be a false one. */
const killDeadlineMs = 60_000;
const jailerDeadlineMs = 1_000;

/** Guests give way to the service, which answers for all of them, and share what is left equally. */
const niceness = 5;

/** What it may write before nobody listens any more: a QEMU that its guest has taken over may write for ever. */
const complaintsReadBytes = 1 << 20;

export interface Spawned {
  process: VmProcess;
  /** Our ends of those that were asked for as "pipe", in order. */
  pipes: Socket[];
  /** How it ended, if it ends while we live. */
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** The end of what it wrote to its standard error. For when it has ended: waits a moment for what is still on its way. */
  stderrTail(): Promise<string>;
}

/** A descriptor, or a new pipe to us. */
export type Inherited = number | "pipe";

/**
 * Starts a program in its own session. It inherits no descriptor but a pipe for its complaints (a file would be a
 * disk to fill) and those in `inherited`, from 3 on.
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
  child.on("error", () => {}); // told below, by the missing pid
  lowerPriority(child.pid);
  const exited = new Promise<Awaited<Spawned["exited"]>>((resolve) => {
    child.once("exit", (code, signal) => resolve({ code, signal }));
  });
  const pipes = inherited.flatMap((each, index) => (each === "pipe" ? [child.stdio[index + 3] as Socket] : []));
  for (const pipe of pipes) pipe?.on("error", () => {});
  const lastWords = listen(child.stderr as Socket | null); // a pipe, which Node makes as a pair of sockets
  const startTicks = child.pid === undefined ? null : startTicksOf(child.pid);
  if (child.pid === undefined || startTicks === null) {
    throw new CapsuleError("agent_error", `The VM could not be started: ${program} does not run here.`);
  }
  return { process: { pid: child.pid, startTicks }, pipes, exited, stderrTail: lastWords };
}

/** Threads and processes that it starts from now on inherit it. */
export function lowerPriority(pid: number | undefined): void {
  try {
    if (pid !== undefined) setPriority(pid, niceness);
  } catch {} // it has ended already
}

function listen(stderr: Socket | null): () => Promise<string> {
  let tail = Buffer.alloc(0);
  stderr?.on("data", (chunk: Buffer) => {
    tail = Buffer.concat([tail, chunk]).subarray(-complaintBytes);
    if (stderr.bytesRead > complaintsReadBytes) stderr.destroy();
  });
  stderr?.on("error", () => {});
  stderr?.unref();
  const isSilent = new Promise<void>((resolve) => stderr?.once("close", resolve));
  return async () => {
    await Promise.race([isSilent, delay(lastWordsMs)]);
    return tail.toString("utf8").trim();
  };
}

/** True while this very process exists; a zombie does not count. */
export function isAlive({ pid, startTicks }: VmProcess): boolean {
  return startTicksOf(pid) === startTicks;
}

/**
 * Field 22 of /proc/<pid>/stat, or null when there is no such process or only its zombie. A zombie whose other threads
 * are still ending is not gone: it holds its files and their locks.
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

export interface Stat {
  parent: number;
  startTicks: number;
  /** Of the processor, by all its threads, in user and kernel mode; clock ticks. */
  spentTicks: number;
}

export function parseStat(stat: string): Stat | null {
  // The second field is the program's name in brackets and may itself hold brackets and spaces.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const [state, parent, threads, startTicks] = [fields[0], Number(fields[1]), Number(fields[17]), Number(fields[19])];
  const hasEnded = state === "X" || (state === "Z" && threads <= 1);
  if (hasEnded || !Number.isSafeInteger(startTicks)) return null;
  return { parent, startTicks, spentTicks: Number(fields[11]) + Number(fields[12]) };
}

/** True when this very process exists and carries the nonce. */
export async function isVm(process: VmProcess, nonce: string): Promise<boolean> {
  return isAlive(process) && namesVm(await argumentsOf(process.pid), nonce) && isAlive(process);
}

/**
 * Every process whose command line carries the nonce. A VM in a jail is found a second time while the jail's own process
 * waits for it; that one stands after it.
 */
export async function findByNonce(nonce: string): Promise<VmProcess[]> {
  const found: (VmProcess & { parent: number })[] = [];
  for (const entry of await readdir("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    if (!namesVm(await argumentsOf(pid), nonce)) continue;
    const stat = statOf(pid);
    if (stat !== null) found.push({ pid, startTicks: stat.startTicks, parent: stat.parent });
  }
  const children = (process: VmProcess) => found.filter(({ parent }) => parent === process.pid).length;
  return found.sort((a, b) => children(a) - children(b)).map(({ pid, startTicks }) => ({ pid, startTicks }));
}

/** Every VM whose own folder lies below `folder`, with its nonce. */
export async function findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
  const found: { process: VmProcess; nonce: string }[] = [];
  for (const entry of await readdir("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    const nonce = nonceBelow(await argumentsOf(pid), folder);
    const startTicks = nonce === null ? null : startTicksOf(pid);
    if (nonce !== null && startTicks !== null) found.push({ process: { pid, startTicks }, nonce });
  }
  return found;
}

async function argumentsOf(pid: number): Promise<string[]> {
  try {
    return (await readFile(`/proc/${pid}/cmdline`, "utf8")).split("\0");
  } catch {
    return [];
  }
}

/** Kills a process and waits until it is gone, and its jailer with it. Nothing happens when it is gone already. */
export async function endProcess(victim: VmProcess): Promise<void> {
  const parent = parentOf(victim);
  kill(victim);
  const jailer = await jailerAt(parent);
  if (!(await isGoneWithin(victim, killDeadlineMs))) {
    throw new CapsuleError("internal_error", `Process ${victim.pid} did not end after being killed.`);
  }
  if (jailer !== null && !(await isGoneWithin(jailer, jailerDeadlineMs))) kill(jailer);
}

/** The process that bubblewrap leaves outside of a jail has nothing to do but to wait for the one inside. */
export async function endJailer(process: VmProcess): Promise<void> {
  const jailer = await jailerAt(parentOf(process));
  if (jailer !== null) kill(jailer);
}

function parentOf(process: VmProcess): VmProcess | null {
  const stat = statOf(process.pid);
  if (stat === null || stat.startTicks !== process.startTicks) return null;
  const startTicks = startTicksOf(stat.parent);
  return startTicks === null ? null : { pid: stat.parent, startTicks };
}

/** The parent, if it is a jailer. */
async function jailerAt(parent: VmProcess | null): Promise<VmProcess | null> {
  if (parent === null) return null;
  const [program = ""] = await argumentsOf(parent.pid);
  return basename(program) === "bwrap" ? parent : null;
}

function kill(victim: VmProcess): void {
  if (!isAlive(victim)) return;
  try {
    process.kill(victim.pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** True as soon as the process is gone; false when it is still there after `deadlineMs`. */
export async function isGoneWithin(process: VmProcess, deadlineMs: number): Promise<boolean> {
  const deadline = performance.now() + deadlineMs;
  while (isAlive(process)) {
    if (performance.now() > deadline) return false;
    await delay(killPollMs);
  }
  return true;
}
