/**
 * Memory that can still be had here: what the machine has left, and in a container or a service with a bound of its own
 * what is left of the narrowest control group on the way up from ours. Control groups count the page cache as used; what of
 * it nobody has touched lately they give back by themselves, so it counts as left.
 */
import { readFile } from "node:fs/promises";
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

/** Bytes. */
export async function memoryLeft({ meminfo, own, cgroups }: MemoryPlaces = places): Promise<number> {
  const groups = (await readText(own)) ?? "";
  const ofV1 = /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(\/.*)$/m.exec(groups)?.[1];
  const ofV2 = /^0::(\/.*)$/m.exec(groups)?.[1];
  const left = await Promise.all([
    ofMachine(meminfo),
    ofV1 === undefined ? Number.POSITIVE_INFINITY : leftUpTheTree(join(cgroups, "memory"), ofV1, v1),
    ofV2 === undefined ? Number.POSITIVE_INFINITY : leftUpTheTree(cgroups, ofV2, v2),
  ]);
  return Math.max(0, Math.min(...left));
}

async function ofMachine(meminfo: string): Promise<number> {
  const found = /^MemAvailable:\s+(\d+) kB$/m.exec((await readText(meminfo)) ?? "");
  return found === null ? freemem() : Number(found[1]) * 1_024;
}

/** Of the narrowest. A container may see no more than the top of the path, which is its own group then. */
async function leftUpTheTree(mount: string, path: string, version: Version): Promise<number> {
  const inside = join("/", path);
  const paths = [inside];
  for (let at = inside; at !== "/"; at = dirname(at)) paths.push(dirname(at));
  return Math.min(...(await Promise.all(paths.map((each) => leftOf(join(mount, each), version)))));
}

/** Infinity where there is no bound; version 1 says so by a number beyond any machine. */
async function leftOf(group: string, { max, used, idle }: Version): Promise<number> {
  const [bound, taken, stat] = await Promise.all([max, used, "memory.stat"].map((name) => readText(join(group, name))));
  const maxBytes = Number.parseInt(bound ?? "", 10);
  const usedBytes = Number.parseInt(taken ?? "", 10);
  if (!Number.isFinite(maxBytes) || !Number.isFinite(usedBytes)) return Number.POSITIVE_INFINITY;
  return maxBytes - usedBytes + Number(idle.exec(stat ?? "")?.[1] ?? 0);
}

/** Undefined when it cannot be read. */
function readText(path: string): Promise<string | undefined> {
  return readFile(path, "utf8").catch(() => undefined);
}
