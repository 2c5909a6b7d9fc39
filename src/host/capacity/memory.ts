/**
 * Memory that can still be had here: what the machine has left, and in a container or a service with a bound of its own
 * what is left of the narrowest control group on the way up from ours. Control groups count the page cache as used; what of
 * it nobody has touched lately they give back by themselves, so it counts as left.
 */
import { readFileSync } from "node:fs";
import { freemem } from "node:os";
import { dirname, join } from "node:path";

export interface MemoryPlaces {
  meminfo: string;
  /** Says which groups we are in. */
  own: string;
  /** Where control groups are mounted: version 2 here, version 1's memory in `memory` below. */
  cgroups: string;
}

const places: MemoryPlaces = { meminfo: "/proc/meminfo", own: "/proc/self/cgroup", cgroups: "/sys/fs/cgroup" };

/** Names of a version's files, and of the reclaimable bytes in its `memory.stat`. */
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

/** Bytes. Waiting for threads that read these few small files took longer than reading them. */
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

/** Of the narrowest. A container may see no more than the top of the path, which is its own group then. */
function leftUpTheTree(mount: string, path: string, version: Version): number {
  const inside = join("/", path);
  const paths = [inside];
  for (let at = inside; at !== "/"; at = dirname(at)) paths.push(dirname(at));
  return Math.min(...paths.map((each) => leftOf(join(mount, each), version)));
}

/** Beyond any machine: version 1 says by such a number that there is no bound. */
const boundless = 2 ** 60;

/** Infinity where there is no bound: then nothing else is read, and least of all the figures, which take longest. */
function leftOf(group: string, { max, used, idle }: Version): number {
  const read = (name: string) => readText(join(group, name)) ?? "";
  const maxBytes = Number.parseInt(read(max), 10);
  if (!(maxBytes < boundless)) return Number.POSITIVE_INFINITY;
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
