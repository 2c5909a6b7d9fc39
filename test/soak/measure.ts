/** The service's use of the machine, measured from outside and compared with a baseline. */
import assert from "node:assert/strict";
import { type Dirent, lstatSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { join } from "node:path";
import { processesOf, type Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";

export interface Taken {
  /** Open descriptors of the server, and sockets among them. */
  descriptors: number;
  sockets: number;
  /** Processes with the data folder in their command line, such as VMs. */
  processes: number;
  /** Disk use of the data folder, without the database, which keeps tombstones and audit records. */
  diskBytes: number;
  /** The server's memory after a garbage collection: V8's heap and external memory. */
  heapBytes: number;
  residentBytes: number;
}

const share = 0.02;

/**
 * Allowed growth beyond 2 %. Descriptors, sockets and processes are so few that 2 % is less than one: they must be
 * equal, except for a connection that the kernel is closing. Disk is measured in blocks, and folders grow with their
 * entries. Code that V8 compiles later and pages that the allocator keeps are no leak. They do not grow with time, so a
 * constant is allowed, which a leak of hours would exceed.
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

/** Measures repeatedly until nothing is above the baseline; throws with the differences at the deadline. */
export async function returnsTo(baseline: Taken, server: Server, gaugeFile: string): Promise<Taken> {
  let last: Taken | undefined;
  try {
    return await waitFor(
      "the use is back at the baseline",
      async () => {
        last = await measure(server, gaugeFile);
        return excess(last, baseline).length === 0 && last;
      },
      { deadlineMs: 120_000 },
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
  return waitFor("the server says what it needs", said);
}

function linksOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      return []; // closed meanwhile
    }
  });
}

/** Disk use below a folder, without the database, which keeps tombstones and audit records. A file that goes meanwhile counts nothing. */
export function bytesBelow(folder: string): number {
  return entriesOf(folder)
    .filter((entry) => !entry.name.startsWith("capsule.db"))
    .map((entry) => join(folder, entry.name))
    .reduce((sum, path) => {
      const found = lstatSync(path, { throwIfNoEntry: false });
      if (found === undefined) return sum;
      return sum + found.blocks * 512 + (found.isDirectory() ? bytesBelow(path) : 0);
    }, 0);
}

function entriesOf(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}
