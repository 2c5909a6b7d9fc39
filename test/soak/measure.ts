/** What the service has taken of the machine, counted from outside, and held against what it had before. */
import assert from "node:assert/strict";
import { lstatSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { join } from "node:path";
import { eventually } from "../conformance/eventually.ts";
import { processesOf, type Server } from "../server.ts";

export interface Taken {
  /** The server's open descriptors, and how many of them are sockets. */
  descriptors: number;
  sockets: number;
  /** VMs, and whatever else has the data folder in its command line. */
  processes: number;
  /** Below the data folder, without the database, which grows with what it has to remember. */
  diskBytes: number;
  /** What the server's program still needs after its garbage was collected: on V8's heap and beside it. */
  heapBytes: number;
  residentBytes: number;
}

const share = 0.02;

/**
 * How much more than 2 % is none. Descriptors, sockets and processes are so few that 2 % is less than one: they must be
 * equal, but for a connection that the kernel is closing. Disk is counted in blocks of folders that grow with their
 * entries. Code that V8 compiles later, and pages that the allocator keeps for the next time, are no leak: they do not
 * grow with the time, so what is allowed is a constant, which hours of a leak would pass.
 */
const slack: Taken = {
  descriptors: 1,
  sockets: 1,
  processes: 0,
  diskBytes: 256 << 10,
  heapBytes: 3 << 20,
  residentBytes: 16 << 20,
};

export async function measure(server: Server, gaugeFile: string): Promise<Taken> {
  const descriptors = linksOf(server.pid!);
  const { heapUsed, external } = await memoryOf(server, gaugeFile);
  const resident = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))?.[1];
  return {
    descriptors: descriptors.length,
    sockets: descriptors.filter((link) => link.startsWith("socket:")).length,
    processes: processesOf(server.dataDir).length,
    diskBytes: bytesBelow(server.dataDir),
    heapBytes: heapUsed + external,
    residentBytes: 1024 * Number(resident),
  };
}

/** Measures until nothing is above the baseline any more; throws with what is. */
export async function returnsTo(baseline: Taken, server: Server, gaugeFile: string): Promise<Taken> {
  let last: Taken | undefined;
  try {
    return await eventually(
      "what was taken is given back",
      async () => {
        last = await measure(server, gaugeFile);
        return excess(last, baseline).length === 0 && last;
      },
      120_000,
    );
  } catch (error) {
    assert.fail(`${excess(last!, baseline).join("; ")} (${(error as Error).message})`);
  }
}

function excess(now: Taken, baseline: Taken): string[] {
  return (Object.keys(baseline) as (keyof Taken)[])
    .filter((what) => now[what] > baseline[what] * (1 + share) + slack[what])
    .map((what) => `${what}: ${baseline[what]} before, ${now[what]} after`);
}

async function memoryOf(server: Server, gaugeFile: string): Promise<NodeJS.MemoryUsage> {
  rmSync(gaugeFile, { force: true });
  process.kill(server.pid!, "SIGUSR2");
  const said = async () => {
    try {
      return JSON.parse(readFileSync(gaugeFile, "utf8")) as NodeJS.MemoryUsage;
    } catch {
      return undefined;
    }
  };
  return eventually("the server says what it needs", said, 60_000);
}

function linksOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      return []; // it has just been closed
    }
  });
}

function bytesBelow(folder: string): number {
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => !entry.name.startsWith("capsule.db"))
    .map((entry) => join(folder, entry.name))
    .reduce((sum, path) => {
      const found = lstatSync(path, { throwIfNoEntry: false });
      if (found === undefined) return sum;
      return sum + found.blocks * 512 + (found.isDirectory() ? bytesBelow(path) : 0);
    }, 0);
}
