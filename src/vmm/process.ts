/**
 * Processes that outlive us. A QEMU is started in its own session and belongs to nobody afterwards, so it is known by what
 * /proc says of it and not by being our child: pid and start time name a process beyond doubt, the nonce in its command
 * line says that it is the one we meant.
 */
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { namesVm, nonceBelow } from "./qemu-args.ts";
import type { VmProcess } from "./vmm.ts";

/** What is kept of a process's complaints. */
const complaintBytes = 8_192;
const lastWordsMs = 200;
const killPollMs = 3;
const killDeadlineMs = 10_000;

export interface Spawned {
  process: VmProcess;
  /** The end of what it wrote to its standard error. For when it has ended: waits a moment for what is still on its way. */
  lastWords(): Promise<string>;
}

/**
 * Starts a program in its own session. It inherits no descriptor but a pipe for its complaints (a file would be a
 * disk to fill) and those in `inherited`, from 3 on.
 */
export function spawnDetached(argv: string[], cwd: string, inherited: number[] = []): Spawned {
  const [program = "", ...args] = argv;
  const child = spawn(program, args, {
    cwd,
    detached: true,
    stdio: ["ignore", "ignore", "pipe", ...inherited],
    env: { PATH: process.env.PATH ?? "/usr/bin:/bin", LANG: "C.UTF-8" },
  });
  child.unref();
  child.on("error", () => {}); // told below, by the missing pid
  let tail = Buffer.alloc(0);
  const stderr = child.stderr as Socket | null; // a pipe, which Node makes as a pair of sockets
  stderr?.on("data", (chunk: Buffer) => {
    tail = Buffer.concat([tail, chunk]).subarray(-complaintBytes);
  });
  stderr?.on("error", () => {});
  stderr?.unref();
  const isSilent = new Promise<void>((resolve) => stderr?.once("close", resolve));
  const startTicks = child.pid === undefined ? null : startTicksOf(child.pid);
  if (child.pid === undefined || startTicks === null) {
    throw new CapsuleError("agent_error", `The VM could not be started: ${program} does not run here.`);
  }
  return {
    process: { pid: child.pid, startTicks },
    async lastWords() {
      await Promise.race([isSilent, delay(lastWordsMs)]);
      return tail.toString("utf8").trim();
    },
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
function startTicksOf(pid: number): number | null {
  try {
    return parseStat(readFileSync(`/proc/${pid}/stat`, "latin1"));
  } catch {
    return null;
  }
}

export function parseStat(stat: string): number | null {
  // The second field is the program's name in brackets and may itself hold brackets and spaces.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const [state, threads, startTicks] = [fields[0], Number(fields[17]), Number(fields[19])];
  const hasEnded = state === "X" || (state === "Z" && threads <= 1);
  return hasEnded || !Number.isSafeInteger(startTicks) ? null : startTicks;
}

/** True when this very process exists and carries the nonce. */
export async function isVm(process: VmProcess, nonce: string): Promise<boolean> {
  return isAlive(process) && namesVm(await argumentsOf(process.pid), nonce) && isAlive(process);
}

/** Every process whose command line carries the nonce. */
export async function findByNonce(nonce: string): Promise<VmProcess[]> {
  const found: VmProcess[] = [];
  for (const entry of await readdir("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    if (!namesVm(await argumentsOf(pid), nonce)) continue;
    const startTicks = startTicksOf(pid);
    if (startTicks !== null) found.push({ pid, startTicks });
  }
  return found;
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

/** Kills a process and waits until it is gone. Nothing happens when it is gone already. */
export async function endProcess(victim: VmProcess): Promise<void> {
  if (isAlive(victim)) {
    try {
      process.kill(victim.pid, "SIGKILL");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
  }
  if (!(await isGoneWithin(victim, killDeadlineMs))) {
    throw new CapsuleError("internal_error", `Process ${victim.pid} did not end after being killed.`);
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
