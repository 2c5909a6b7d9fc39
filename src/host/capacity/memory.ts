/**
 * Memory that is still available: the machine's, and in a container or a service with a limit that of the narrowest control
 * group from ours upwards. Control groups count the page cache as used; its inactive part can be reclaimed, so it counts as
 * available here.
 */
import { readFileSync } from "node:fs";
import { freemem } from "node:os";
import { dirname, join } from "node:path";

export interface MemoryPlaces {
  meminfo: string;
  /** Names the control groups of this process. */
  own: string;
  /** Mount point of control groups: version 2 here, version 1's memory controller in `memory` below. */
  cgroups: string;
}

const places: MemoryPlaces = { meminfo: "/proc/meminfo", own: "/proc/self/cgroup", cgroups: "/sys/fs/cgroup" };

/** File names of a version of control groups, and the reclaimable bytes in its `memory.stat`. */
interface Version {
  max: string;
  used: string;
  idle: RegExp;
}

const v1: Version = {
  max: "memory.limit_in_bytes",
  used: "memory.usage_in_bytes",
  idle: /^total_inactive_file (\d+)$/m,
};
const v2: Version = { max: "memory.max", used: "memory.current", idle: /^inactive_file (\d+)$/m };

/** In bytes. Reads synchronously: the files are small and in memory. */
export function memoryLeft({ meminfo, own, cgroups }: MemoryPlaces = places): number {
  const groups = readText(own) ?? "";
  const ofV1 = /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(\/.*)$/m.exec(groups)?.[1];
  const ofV2 = /^0::(\/.*)$/m.exec(groups)?.[1];
  const left = Math.min(
    ofMachine(meminfo),
    ofV1 === undefined ? Number.POSITIVE_INFINITY : leftUpTheTree(join(cgroups, "memory"), ofV1, v1),
    ofV2 === undefined ? Number.POSITIVE_INFINITY : leftUpTheTree(cgroups, ofV2, v2),
  );
  return Math.max(0, left);
}

function ofMachine(meminfo: string): number {
  const found = /^MemAvailable:\s+(\d+) kB$/m.exec(readText(meminfo) ?? "");
  return found === null ? freemem() : Number(found[1]) * 1_024;
}

/** The least left in any group of the path. A container may see only the top of it, which is its own group then. */
function leftUpTheTree(mount: string, path: string, version: Version): number {
  const inside = join("/", path);
  const paths = [inside];
  for (let at = inside; at !== "/"; at = dirname(at)) paths.push(dirname(at));
  return Math.min(...paths.map((each) => leftOf(join(mount, each), version)));
}

/** Version 1 reports a larger number than this when there is no limit. */
const noLimitBytes = 2 ** 60;

/** Infinity where there is no limit; `memory.stat`, which takes longest to read, is not read then. */
function leftOf(group: string, { max, used, idle }: Version): number {
  const read = (name: string) => readText(join(group, name)) ?? "";
  const maxBytes = Number.parseInt(read(max), 10);
  if (!(maxBytes < noLimitBytes)) return Number.POSITIVE_INFINITY;
  const usedBytes = Number.parseInt(read(used), 10);
  if (!Number.isFinite(usedBytes)) return Number.POSITIVE_INFINITY;
  return maxBytes - usedBytes + Number(idle.exec(read("memory.stat"))?.[1] ?? 0);
}

/** Undefined when it cannot be read. */
function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

/** Whether the host has memory to spare for VMs that no client has asked for yet. */
export interface Pressure {
  /** No further VM should be started ahead of time. */
  isRising(): boolean;
  /** VMs that were started ahead of time should be ended. */
  isHigh(): boolean;
}

/** MemAvailable as a share of MemTotal; 1 where the kernel does not report them. */
export function shareAvailable(meminfo: string): number {
  const kib = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(meminfo)?.[1] ?? Number.NaN);
  const share = kib("MemAvailable") / kib("MemTotal");
  return Number.isFinite(share) ? share : 1;
}
