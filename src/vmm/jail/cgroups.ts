/**
 * Control groups, version 2, one for each process in a jail: bounds on its memory, processor and number of processes that
 * it cannot leave, whatever it does. As root they lie beside all services and not below ours, so that a service manager
 * which ends the service's group leaves the VMs alone. Without root they lie in what was delegated to the service, and so
 * they do in a container, whose top is a group like any other.
 *
 *      <root>/capsule/<name>                       as root
 *      <root>/<the service's own>/capsule/<name>   else; the service itself moves to …/service, where a service manager
 *                                                  has to start it when it comes back to VMs that run on
 *
 * A process joins before it becomes bubblewrap. Empty groups are removed when another one is made.
 *
 * https://docs.kernel.org/admin-guide/cgroup-v2.html
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { ProfileLimits } from "./jail-args.ts";

const needed = ["memory", "cpu", "pids"];
/** A group this old has been joined, or never will be. */
const joinedMs = 60_000;
const periodUs = 100_000;
const serviceName = "service";
/**
 * Of a busy disk, VMs share evenly, and all together leave the greater part to the service and whatever else stands beside
 * them. There is no bound in bytes or operations (io.max): what a disk bears, nobody knows but who bought it.
 */
const ioWeights = { all: 50, each: 100 };
export const remedy =
  "control groups v2 with memory, cpu and pids (boot with systemd.unified_cgroup_hierarchy=1; without root, have them delegated to the service: Delegate=yes and DelegateSubgroup=service)";

export interface CgroupPlaces {
  root: string;
  /** Says which group the service is in. */
  own: string;
}

const places: CgroupPlaces = { root: "/sys/fs/cgroup", own: "/proc/self/cgroup" };

export class Cgroups {
  readonly #parent: string;
  readonly #hasIo: boolean;

  /** Undefined where this machine, or our rights on it, has none. */
  static open(isRoot: boolean, { root, own }: CgroupPlaces = places): Cgroups | undefined {
    try {
      if (!includesAll(readWords(join(root, "cgroup.controllers")), needed)) return undefined;
      const isFree = isRoot && isTop(root);
      const base = isFree ? root : join(root, delegatedGroup(own));
      if (!isFree) moveTo(join(base, serviceName));
      const parent = join(base, "capsule");
      for (const group of [base, parent]) {
        mkdirSync(group, { recursive: true });
        enable(group);
      }
      const hasIo = readWords(join(parent, "cgroup.controllers")).includes("io");
      if (hasIo) weigh(parent, ioWeights.all);
      return new Cgroups(parent, hasIo);
    } catch {
      return undefined; // not mounted, not ours, or not delegated
    }
  }

  private constructor(parent: string, hasIo: boolean) {
    this.#parent = parent;
    this.#hasIo = hasIo;
  }

  /** Makes a group; returns what to put before a command line that is to run in it. */
  make(name: string, limits: ProfileLimits): string[] {
    this.#sweep();
    const group = join(this.#parent, name);
    mkdirSync(group);
    for (const [file, value] of Object.entries(settings(limits))) writeFileSync(join(group, file), value);
    if (this.#hasIo) weigh(group, ioWeights.each);
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group];
  }

  #sweep(): void {
    for (const entry of readdirSync(this.#parent, { withFileTypes: true })) {
      const group = join(this.#parent, entry.name);
      try {
        if (entry.isDirectory() && Date.now() - statSync(group).ctimeMs > joinedMs) rmdirSync(group);
      } catch {} // somebody is in it
    }
  }
}

/** What is written to a group's files. */
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
 * Whether its memory's bound was the end of a process; to be had while the process lives, and asked when it is gone. Its
 * group counts what the kernel did to keep that bound, and not the kills for a machine that is full.
 */
export function memoryVerdict(pid: number, root = places.root): () => boolean {
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
      return false; // version 1, or swept away meanwhile
    }
  };
}

/** "0::/user.slice/…": the group in the unified hierarchy. */
function groupIn(path: string): string {
  const group = /^0::(\/.*)$/m.exec(readFileSync(path, "utf8"))?.[1];
  if (group === undefined) throw new Error("no unified hierarchy");
  return group;
}

/** What was handed to the service, whether it has been moved within it or not. */
function delegatedGroup(own: string): string {
  const group = groupIn(own);
  return basename(group) === serviceName ? dirname(group) : group;
}

/** Of the whole tree, which alone may hold processes and hand controllers on. */
function isTop(group: string): boolean {
  return !existsSync(join(group, "cgroup.type"));
}

/** Any other group that hands controllers on may hold no process itself. */
function moveTo(group: string): void {
  mkdirSync(group, { recursive: true });
  writeFileSync(join(group, "cgroup.procs"), String(process.pid));
}

/** Lets a group's children use what we need; `io` where there is some, so that VMs share a disk evenly. */
function enable(group: string): void {
  const there = readWords(join(group, "cgroup.controllers"));
  const wanted = [...needed, ...(there.includes("io") ? ["io"] : [])];
  writeFileSync(join(group, "cgroup.subtree_control"), wanted.map((name) => `+${name}`).join(" "));
}

/** For either of the kernel's two ways to share a disk; a kernel without one has no such file. */
function weigh(group: string, weight: number): void {
  for (const file of ["io.weight", "io.bfq.weight"]) {
    try {
      writeFileSync(join(group, file), `default ${weight}`);
    } catch {}
  }
}
