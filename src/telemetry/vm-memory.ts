/**
 * The memory of all VMs, from /proc. RSS is cheap and counts a shared page in every VM. PSS divides a shared page among
 * its VMs and needs a walk of the page tables, so one sample reads it for 32 VMs, in rotation, and uses the last value of
 * the others.
 */
import { readFile } from "node:fs/promises";
import type { VmProcess } from "../vmm/vmm.ts";

const pssPerSample = 32;
/** A sample is reused for this long. */
const freshMs = 1_000;

export interface VmMemory {
  vms: number;
  rssBytes: number;
  /** Counts the RSS of VMs without a PSS value yet. */
  pssBytes: number;
}

export class VmMemorySampler {
  readonly #find: () => Promise<VmProcess[]>;
  readonly #now: () => number;
  /** By pid and start time, least recently measured first. */
  readonly #pss = new Map<string, number>();
  #last: { at: number; memory: Promise<VmMemory> } | undefined;

  constructor(find: () => Promise<VmProcess[]>, now: () => number = () => performance.now()) {
    this.#find = find;
    this.#now = now;
  }

  sample(): Promise<VmMemory> {
    const now = this.#now();
    if (this.#last === undefined || now - this.#last.at >= freshMs) this.#last = { at: now, memory: this.#measure() };
    return this.#last.memory;
  }

  async #measure(): Promise<VmMemory> {
    const processes = new Map((await this.#find()).map((each) => [`${each.pid}/${each.startTicks}`, each.pid]));
    for (const key of this.#pss.keys()) if (!processes.has(key)) this.#pss.delete(key);
    const unmeasured = [...processes.keys()].filter((key) => !this.#pss.has(key));
    for (const key of [...unmeasured, ...this.#pss.keys()].slice(0, pssPerSample)) {
      const bytes = await readKib(processes.get(key) as number, "smaps_rollup", "Pss");
      this.#pss.delete(key); // reinserted as the most recent
      if (bytes !== undefined) this.#pss.set(key, bytes);
    }
    const memory = { vms: processes.size, rssBytes: 0, pssBytes: 0 };
    for (const [key, pid] of processes) {
      const rss = (await readKib(pid, "status", "VmRSS")) ?? 0;
      memory.rssBytes += rss;
      memory.pssBytes += this.#pss.get(key) ?? rss;
    }
    return memory;
  }
}

/** In bytes; undefined when the process is gone or cannot be read. */
async function readKib(pid: number, file: string, field: string): Promise<number | undefined> {
  const text = await readFile(`/proc/${pid}/${file}`, "latin1").catch(() => "");
  const [, kib] = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(text) ?? [];
  return kib === undefined ? undefined : Number(kib) * 1_024;
}
