/**
 * Control groups (version 2), one for each jailed process: limits on memory, CPU and number of processes. As root they
 * are siblings of all services' groups and not children of this service's group, so that a service manager which kills
 * the service's group leaves the VMs alone. Without root, and in a container, they are children of the group delegated
 * to the service.
 *
 *      <root>/capsule/<name>                    as root
 *      <root>/<delegated group>/capsule/<name>  else; the service itself moves to <delegated group>/service, and a
 *                                               service manager must restart it there while VMs run
 *                                               (DelegateSubgroup=service)
 *
 * A process joins its group before it executes bubblewrap. Empty groups are removed when the next ones are made.
 *
 * All VMs together have a limit too, so that they run out of memory before the machine does, and the kernel kills one of
 * them and nothing else. It is not lowered below what they use, since that would kill one at once.
 *
 * https://docs.kernel.org/admin-guide/cgroup-v2.html
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { ProfileLimits } from "./jail-args.ts";

const requiredControllers = ["memory", "cpu", "pids"];
/** A group is removed only after this time: a younger one may not have been joined yet. */
const joinedMs = 60_000;
/**
 * Groups that are examined when one is made. More than one, so that empty groups become fewer; not all, because a machine with
 * 10 000 VMs has as many.
 */
const examinedPerMake = 8;
const periodUs = 100_000;
const serviceName = "service";
/**
 * Weights on a busy disk. VMs share evenly; together they get half the weight of the service (100 by default). There is
 * no io.max: the right limit depends on the disk, which only the operator knows.
 */
const ioWeights = { all: 50, each: 100 };
/** Part of the limit of all VMs below which the kernel slows down the ones that take more memory. */
const throttledShare = 1 / 32;
export const cgroupRemedy =
  "control groups v2 with memory, cpu and pids (boot with systemd.unified_cgroup_hierarchy=1; without root, delegate them to the service: Delegate=yes and DelegateSubgroup=service)";

export interface CgroupPaths {
  root: string;
  /** File that names the group of this process. */
  own: string;
}

const systemPaths: CgroupPaths = { root: "/sys/fs/cgroup", own: "/proc/self/cgroup" };

export class Cgroups {
  readonly #parent: string;
  readonly #hasIo: boolean;
  /** All groups, those of an earlier daemon included; the next to be examined first. */
  readonly #names: Set<string>;
  /** Limits of all VMs together. */
  #limits = { maxBytes: Number.POSITIVE_INFINITY, highBytes: Number.POSITIVE_INFINITY };
  /** As written. */
  #maxBytes = Number.POSITIVE_INFINITY;

  /** Undefined when control groups are not mounted, not delegated, or lack a required controller. */
  static open(isRoot: boolean, { root, own }: CgroupPaths = systemPaths): Cgroups | undefined {
    try {
      if (!includesAll(readWords(join(root, "cgroup.controllers")), requiredControllers)) return undefined;
      const isTopLevel = isRoot && isRootGroup(root);
      const base = isTopLevel ? root : join(root, delegatedGroup(own));
      if (!isTopLevel) moveTo(join(base, serviceName));
      const parent = join(base, "capsule");
      for (const group of [base, parent]) {
        mkdirSync(group, { recursive: true });
        enable(group);
      }
      const hasIo = readWords(join(parent, "cgroup.controllers")).includes("io");
      if (hasIo) setIoWeight(parent, ioWeights.all);
      return new Cgroups(parent, hasIo);
    } catch {
      return undefined; // not mounted, not ours, or not delegated
    }
  }

  private constructor(parent: string, hasIo: boolean) {
    this.#parent = parent;
    this.#hasIo = hasIo;
    const entries = readdirSync(parent, { withFileTypes: true });
    this.#names = new Set(entries.filter((entry) => entry.isDirectory()).map(({ name }) => name));
  }

  /** Makes a group; returns the command prefix that joins it. */
  make(name: string, limits: ProfileLimits): string[] {
    this.#removeEmpty();
    const group = join(this.#parent, name);
    mkdirSync(group);
    this.#names.add(name);
    for (const [file, value] of Object.entries(settings(limits))) writeFileSync(join(group, file), value);
    writeIfPossible(join(group, "memory.swap.max"), String(limits.dataBytes)); // its swap does not count as memory
    if (this.#hasIo) setIoWeight(group, ioWeights.each);
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group];
  }

  /** Limits the memory of all VMs together. */
  limitMemory(maxBytes: number): void {
    this.#limits = { maxBytes, highBytes: Math.floor(maxBytes * (1 - throttledShare)) };
    writeFileSync(join(this.#parent, "memory.high"), String(this.#limits.highBytes));
    this.#setMax(Math.max(maxBytes, this.#usedBytes()));
  }

  /** Bytes until the kernel slows down all VMs; page cache that it can take back counts as free. Negative: it does so now. */
  memoryRoom(): number {
    const { highBytes, maxBytes } = this.#limits;
    if (highBytes === Number.POSITIVE_INFINITY) return highBytes;
    const usedBytes = this.#usedBytes();
    if (this.#maxBytes > maxBytes && usedBytes <= maxBytes) this.#setMax(maxBytes);
    return highBytes - usedBytes + this.#reclaimableBytes();
  }

  /** Inactive page cache, and of the active what no process maps: mapped pages are guests' memory, which they would read again. */
  #reclaimableBytes(): number {
    const stat = readFileSync(join(this.#parent, "memory.stat"), "utf8");
    const bytesOf = (name: string) => Number(new RegExp(`^${name} (\\d+)$`, "m").exec(stat)?.[1] ?? 0);
    return bytesOf("inactive_file") + Math.max(0, bytesOf("active_file") - bytesOf("file_mapped"));
  }

  #usedBytes(): number {
    return Number(readFileSync(join(this.#parent, "memory.current"), "utf8"));
  }

  #setMax(bytes: number): void {
    writeFileSync(join(this.#parent, "memory.max"), String(bytes));
    this.#maxBytes = bytes;
  }

  #removeEmpty(): void {
    let left = Math.min(examinedPerMake, this.#names.size);
    for (const name of this.#names) {
      if (left-- === 0) return;
      this.#names.delete(name);
      if (!removeIfEmpty(join(this.#parent, name))) this.#names.add(name);
    }
  }
}

/** True when the group is gone. */
function removeIfEmpty(group: string): boolean {
  try {
    if (Date.now() - statSync(group).ctimeMs <= joinedMs) return false;
    rmdirSync(group);
    return true;
  } catch {
    return !existsSync(group); // a process is in it
  }
}

/** Files of a group and the values written to them. */
export function settings({ dataBytes, processes, cpus }: ProfileLimits): Record<string, string> {
  return {
    "memory.max": String(dataBytes),
    "memory.oom.group": "1",
    "cpu.max": `${Math.round(cpus * periodUs)} ${periodUs}`,
    "pids.max": String(processes),
  };
}

function readWords(path: string): string[] {
  return readFileSync(path, "utf8").trim().split(/\s+/);
}

function includesAll(words: string[], wanted: string[]): boolean {
  return wanted.every((word) => words.includes(word));
}

/**
 * Returns a function that tells whether the kernel killed a process for exceeding its group's memory limit. Call this
 * while the process lives and the function after its end. Kills for lack of memory on the whole machine do not count:
 * the group's `oom` counter stays 0 for them.
 */
export function memoryVerdict(pid: number, root = systemPaths.root): () => boolean {
  let events: string;
  try {
    events = join(root, groupIn(`/proc/${pid}/cgroup`), "memory.events");
  } catch {
    return () => false;
  }
  return () => {
    try {
      const counts = readFileSync(events, "utf8");
      return ["oom", "oom_kill"].every((name) => new RegExp(`^${name} [1-9]`, "m").test(counts));
    } catch {
      return false; // version 1, or the group has been removed
    }
  };
}

/** The group in the unified hierarchy: the line "0::/user.slice/…". */
function groupIn(path: string): string {
  const group = /^0::(\/.*)$/m.exec(readFileSync(path, "utf8"))?.[1];
  if (group === undefined) throw new Error("no unified hierarchy");
  return group;
}

/** The group delegated to the service, whether or not the service has moved to its "service" child. */
function delegatedGroup(own: string): string {
  const group = groupIn(own);
  return basename(group) === serviceName ? dirname(group) : group;
}

/** True for the hierarchy's root, the only group that may both hold processes and enable controllers for children. */
function isRootGroup(group: string): boolean {
  return !existsSync(join(group, "cgroup.type"));
}

/** Moves this process to a child: a group other than the root that enables controllers may hold no process. */
function moveTo(group: string): void {
  mkdirSync(group, { recursive: true });
  writeFileSync(join(group, "cgroup.procs"), String(process.pid));
}

/** Enables the required controllers for a group's children, and `io` where available. */
function enable(group: string): void {
  const available = readWords(join(group, "cgroup.controllers"));
  const wanted = [...requiredControllers, ...(available.includes("io") ? ["io"] : [])];
  writeFileSync(join(group, "cgroup.subtree_control"), wanted.map((name) => `+${name}`).join(" "));
}

/** Sets the weight for io.cost and for BFQ; a kernel without one of them lacks its file. */
function setIoWeight(group: string, weight: number): void {
  for (const file of ["io.weight", "io.bfq.weight"]) writeIfPossible(join(group, file), `default ${weight}`);
}

/** For a file that a kernel may lack. */
function writeIfPossible(path: string, value: string): void {
  try {
    writeFileSync(path, value);
  } catch {}
}
