/**
 * Ends a jail whose program bubblewrap has not told of. Bubblewrap's child waits until its parent lets it begin, so it waits for ever
 * where the parent dies in between, as it does when nobody reads its info descriptor.
 */
import { readdirSync, readFileSync } from "node:fs";

/** A process stops within microseconds, unless it is in a long system call. */
const stopMaxMs = 50;

/** The children of a process, as its first thread started them. */
export function childrenOf(pid: number): number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, "latin1").split(" ").map(Number).filter(Boolean);
  } catch {
    return []; // it has ended
  }
}

/** Kills the program in the jail of this bubblewrap, which ends after it, or bubblewrap where it has started none. */
export function killJailOf(bwrap: number): void {
  signal(bwrap, "SIGSTOP");
  const untilMs = performance.now() + stopMaxMs;
  while (isGoing(bwrap) && performance.now() < untilMs); // once it has stopped it starts none
  const children = childrenOf(bwrap);
  for (const pid of children) signal(pid, "SIGKILL");
  signal(bwrap, children.length === 0 ? "SIGKILL" : "SIGCONT");
}

/** Kills every process whose last argument is `mark`, but this one. */
export function killMarked(mark: string): void {
  for (const entry of readdirSync("/proc")) {
    const pid = Number(entry);
    if (Number.isInteger(pid) && pid !== process.pid && lastArgumentOf(pid) === mark) signal(pid, "SIGKILL");
  }
}

function lastArgumentOf(pid: number): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "latin1").split("\0").at(-2);
  } catch {
    return undefined; // it has ended
  }
}

/** Whether the process neither has stopped nor is ending. */
function isGoing(pid: number): boolean {
  try {
    const status = readFileSync(`/proc/${pid}/stat`, "latin1");
    return !"TtZXx".includes(status.charAt(status.lastIndexOf(")") + 2));
  } catch {
    return false; // it has ended
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {} // it has ended
}
