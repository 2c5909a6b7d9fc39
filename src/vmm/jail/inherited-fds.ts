/**
 * Descriptors that whoever started us has left open. Everything that we open ourselves is closed in the programs we start;
 * these would be handed on to every VM, whatever they lead to.
 */
import { closeSync, readdirSync, readFileSync } from "node:fs";

const closeOnExec = 0o2000000;

/** Closes them. Nothing of ours uses them: Node marks what it opens or was given to talk to its parent. */
export function closeInheritedFds(): void {
  for (const entry of readdirSync("/proc/self/fdinfo")) {
    const fd = Number(entry);
    if (fd > 2 && isStranger(fd)) closeSync(fd);
  }
}

function isStranger(fd: number): boolean {
  try {
    const flags = /^flags:\t([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "latin1"))?.[1];
    return flags !== undefined && (Number.parseInt(flags, 8) & closeOnExec) === 0;
  } catch {
    return false; // the one that the folder was read through
  }
}
