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

/** How long its threads have run, ms. */
export function ranMs(pid: number): number {
  const threads = readdirSync(`/proc/${pid}/task`);
  const ns = threads.map((thread) =>
    Number.parseInt(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "latin1"), 10),
  );
  return ns.reduce((sum, each) => sum + each, 0) / 1e6;
}

function kilobytes(path: string, field: string): number {
  const found = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(readFileSync(path, "utf8"))?.[1];
  if (found === undefined) throw new Error(`${path} does not tell ${field}`);
  return Number(found);
}
