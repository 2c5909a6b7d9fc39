/** A process's memory as the kernel counts it, MiB; and its processor time. */
import { readdirSync, readFileSync } from "node:fs";

/** Everything resident, shared or not. */
export function rssMib(pid: number): number {
  return kilobytes(`/proc/${pid}/status`, "VmRSS") / 1024;
}

/** Its own pages, and its share of those that others map too. */
export function pssMib(pid: number): number {
  return kilobytes(`/proc/${pid}/smaps_rollup`, "Pss") / 1024;
}

/** How long each of its threads has run, ms. */
export function threadsRanMs(pid: number): Map<string, number> {
  const ran = new Map<string, number>();
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    try {
      ran.set(thread, Number.parseInt(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "latin1"), 10) / 1e6);
    } catch {} // it has ended
  }
  return ran;
}

/** How long they have run since, ms; without what those did that have ended. */
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
