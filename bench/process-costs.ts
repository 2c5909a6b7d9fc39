/** Memory (MiB) and processor time of a process, as the kernel counts them. */
import { readdirSync, readFileSync } from "node:fs";

/** Resident set size. */
export function rssMib(pid: number): number {
  return kilobytes(`/proc/${pid}/status`, "VmRSS") / 1024;
}

/** Proportional set size. */
export function pssMib(pid: number): number {
  return kilobytes(`/proc/${pid}/smaps_rollup`, "Pss") / 1024;
}

/** Processor time of each thread, ms. */
export function threadsRanMs(pid: number): Map<string, number> {
  const ran = new Map<string, number>();
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    try {
      ran.set(thread, Number.parseInt(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "latin1"), 10) / 1e6);
    } catch {} // the thread has ended
  }
  return ran;
}

/** Processor time since `before`, ms. Threads that have ended are not counted. */
export function ranSinceMs(pid: number, before: ReadonlyMap<string, number>): number {
  let sum = 0;
  for (const [thread, ms] of threadsRanMs(pid)) sum += ms - (before.get(thread) ?? 0);
  return sum;
}

function kilobytes(path: string, field: string): number {
  const found = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(readFileSync(path, "utf8"))?.[1];
  if (found === undefined) throw new Error(`${path} does not tell ${field}`);
  return Number(found);
}
