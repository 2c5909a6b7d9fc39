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
    if (this.#hasIo) setIoWeight(group, ioWeights.each);
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group];
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
  for (const file of ["io.weight", "io.bfq.weight"]) {
    try {
      writeFileSync(join(group, file), `default ${weight}`);
    } catch {}
  }
}
