/** Bringing a guest to a standstill, and letting it go on from there. */
import { readFileSync } from "node:fs";
import type { VmProcess } from "../vmm/vmm.ts";
import { CapsuleError } from "../wire/errors.ts";
import { within } from "./deadline.ts";
import type { LiveGuest } from "./guest.ts";
import { identityOf } from "./identity.ts";

/** Freezing is a courtesy that a guest may refuse; pausing does not wait long for it. */
const freezeMs = 2_000;
const answerMs = 8_000;

/**
 * Asks the agent to freeze the user's processes; false when they are not, for certain. A guest too busy or too hostile to
 * answer can be paused all the same, since nobody but itself wakes up in its place; it cannot be captured. The first FREEZE
 * is sent before this returns, and none once `unwanted`.
 */
export async function freeze(live: LiveGuest, attempts: number, unwanted?: AbortSignal): Promise<boolean> {
  try {
    for (let left = attempts; left > 0 && unwanted?.aborted !== true; left--) {
      if ((await within(freezeMs, "freezing", live.agent.freeze())).frozen) return true;
    }
  } catch {}
  return false;
}

/** After a stop: the clock stood still meanwhile, so the guest is woken anew before its processes run. */
export async function goOn(live: LiveGuest): Promise<void> {
  await live.listenAgain();
  await live.agent.wake(identityOf(live.id));
  await live.thaw();
}

/** Asked before the VM is stopped: a QEMU that hangs, or waits for the disk, cannot be stopped in order. */
export async function requireRunning({ id, vm }: LiveGuest): Promise<void> {
  const state = await within(answerMs, `reaching the VM of capsule ${id}`, vm.state());
  if (state === "stopped") throw new CapsuleError("no_space", `capsule ${id} waits for room on the host's disk`);
}

/** What a VM's checkpoint can take at most now: its anonymous memory. */
export function dirtyBytes({ process }: { process: VmProcess }): number {
  try {
    const status = readFileSync(`/proc/${process.pid}/status`, "utf8");
    return Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1024;
  } catch {
    return 0;
  }
}
