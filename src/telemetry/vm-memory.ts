/**
 * The memory of all VMs together, as /proc tells it. RSS is cheap and counts shared pages once per VM; PSS shares them
 * out, and costs a walk of the page tables: a look takes it of a few VMs, in turns, and keeps the others' last one.
 */
import { readFile } from "node:fs/promises";
import type { VmProcess } from "../vmm/vmm.ts";

const pssPerLook = 32;
/** Looks that come sooner get the last one's answer. */
const freshMs = 1_000;

export interface VmMemory {
  vms: number;
  rssBytes: number;
  /** Of VMs that were never measured yet: their RSS. */
  pssBytes: number;
}

export class VmMemorySampler {
  readonly #find: () => Promise<VmProcess[]>;
  readonly #now: () => number;
  /** By pid and start time, the longest unmeasured first. */
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
    for (const key of [...unmeasured, ...this.#pss.keys()].slice(0, pssPerLook)) {
      const bytes = await readKib(processes.get(key) as number, "smaps_rollup", "Pss");
      this.#pss.delete(key); // to the end of the line
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

/** In bytes; undefined when the process is gone or not ours to look at. */
async function readKib(pid: number, file: string, field: string): Promise<number | undefined> {
  const text = await readFile(`/proc/${pid}/${file}`, "latin1").catch(() => "");
  const [, kib] = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(text) ?? [];
  return kib === undefined ? undefined : Number(kib) * 1_024;
}
