/** How much memory each VM has to itself: what its end would free. Pages shared with a template's file are not counted. */
import { readFileSync } from "node:fs";
import { setImmediate as nextTurn } from "node:timers/promises";

const pageBytes = 4_096;
/** Some 10 µs each. */
const readsPerTurn = 64;

/** The live VM of a capsule. */
interface Measured {
  id: string;
  vm: { process: { pid: number } };
}

/** By capsule, in bytes; 0 for a process that has ended. */
export async function privateMemory(guests: Iterable<Measured>): Promise<Map<string, number>> {
  const found = new Map<string, number>();
  for (const { id, vm } of guests) {
    found.set(id, privateBytesOf(vm.process.pid));
    if (found.size % readsPerTurn === 0) await nextTurn();
  }
  return found;
}

/** Resident pages without those of files. */
function privateBytesOf(pid: number): number {
  try {
    const [, resident = 0, shared = 0] = readFileSync(`/proc/${pid}/statm`, "latin1").split(" ").map(Number);
    return (resident - shared) * pageBytes;
  } catch {
    return 0;
  }
}
