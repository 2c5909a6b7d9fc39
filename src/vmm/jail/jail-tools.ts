/** The installed programs that a jail is built with. */
import { release } from "node:os";
import { CapsuleError } from "../../wire/errors.ts";
import type { Tools } from "./jail-args.ts";
import { findProgram } from "./program-files.ts";

/** Throws CapsuleError, with a remedy, where one is missing. */
export function findTools(): Tools {
  const find = (name: string, debianPackage: string) => {
    const path = findProgram(name);
    if (path !== undefined) return path;
    const remedy = `run apt-get install ${debianPackage}, or set CAPSULE_JAIL=off to run hostile code without a jail`;
    throw new CapsuleError("internal_error", `no jail can be built on this machine: ${name} is missing; ${remedy}`);
  };
  return {
    bwrap: find("bwrap", "bubblewrap"),
    chrt: isSchedulerRecent(release()) ? find("chrt", "util-linux") : null,
    prlimit: find("prlimit", "util-linux"),
    setpriv: find("setpriv", "util-linux"),
    unshare: find("unshare", "util-linux"),
  };
}

/**
 * True for Linux 6.12 and later. Older schedulers let a SCHED_BATCH task that wakes up wait for the end of the running
 * task's time slice, which delays every answer of a guest.
 */
export function isSchedulerRecent(kernel: string): boolean {
  const [major = 0, minor = 0] = kernel.split(/[.-]/).map(Number);
  return major > 6 || (major === 6 && minor >= 12);
}
