/** Descriptors that this process got from its parent and must not give to its children. */
import { closeSync, readdirSync, readFileSync } from "node:fs";

const closeOnExecFlag = 0o2000000;

/**
 * Closes the descriptors without FD_CLOEXEC: those that this process inherited from its parent. Every VM would inherit
 * them as well. Node sets FD_CLOEXEC on every descriptor that it opens or talks to its parent through.
 */
export function closeInheritedFds(): void {
  for (const entry of readdirSync("/proc/self/fdinfo")) {
    const fd = Number(entry);
    if (fd > 2 && isInheritable(fd)) closeSync(fd);
  }
}

function isInheritable(fd: number): boolean {
  try {
    const flags = /^flags:\t([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "latin1"))?.[1];
    return flags !== undefined && (Number.parseInt(flags, 8) & closeOnExecFlag) === 0;
  } catch {
    return false; // the descriptor that the folder was read through is closed by now
  }
}
