/** Bringing a guest to a standstill, and letting it go on from there. */
import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type { VmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { withDeadline } from "../deadline.ts";
import type { LiveGuest } from "../guest.ts";
import { identityOf } from "../identity.ts";

/** Freezing is a courtesy that a guest may refuse; pausing does not wait long for it. */
const freezeMs = 2_000;
const answerMs = 8_000;
/** How long a guest's answer is waited for, when all else is ready, before its QEMU is asked too. */
const soonMs = 10;
/** How often a guest is asked to freeze before its capture is given up; each time it tries for a third of a second. */
const captureAttempts = 10;

export type SavePurpose = "pause" | "capture";

/**
 * A guest being brought to where its CPUs can be stopped. The first FREEZE is sent when this is made. A guest that does not
 * freeze can be paused all the same; captured it cannot be, and is asked more often.
 */
export class Quiesce {
  readonly #live: LiveGuest;
  readonly #purpose: SavePurpose;
  readonly #reconnects: number;
  readonly #givenUp = new AbortController();
  readonly #frozen: Promise<boolean>;
  #isServed = false;

  constructor(live: LiveGuest, purpose: SavePurpose) {
    this.#live = live;
    this.#purpose = purpose;
    this.#reconnects = live.reconnects;
    this.#frozen = freeze(live, purpose === "capture" ? captureAttempts : 1, this.#givenUp.signal);
  }

  /** Resolves when the CPUs can be stopped. From then on no new connection thaws the guest. */
  async done(): Promise<void> {
    const served = this.#requireServed().then(() => {
      this.#isServed = true;
    });
    const [isFrozen] = await Promise.all([this.#frozen, served]);
    const isStill = isFrozen && this.#live.reconnects === this.#reconnects;
    if (this.#purpose === "capture" && !isStill) throw notFrozen(this.#live.id);
    this.#live.suspendMonitoring();
  }

  /** Whether its QEMU is known to do what it is told: without that, nobody stops the CPUs or sets them running. */
  get isServed(): boolean {
    return this.#isServed;
  }

  /** No further FREEZE is sent. */
  giveUp(): void {
    this.#givenUp.abort();
  }

  /** A guest that has frozen by now ran a moment ago, in a QEMU that served it. Of one that takes longer, QEMU is asked. */
  async #requireServed(): Promise<void> {
    const isFrozen = await Promise.race([this.#frozen, delay(soonMs, false, { ref: false })]);
    if (!isFrozen) await requireRunning(this.#live);
  }
}

function notFrozen(id: string): CapsuleError {
  return new CapsuleError("agent_error", `the processes of capsule ${id} could not be frozen`);
}

/**
 * Asks the agent to freeze the user's processes; false when they are not, for certain. A guest too busy or too hostile to
 * answer can be paused all the same, since nobody but itself wakes up in its place; it cannot be captured. The first FREEZE
 * is sent before this returns, and none once `unwanted`.
 */
export async function freeze(live: LiveGuest, attempts: number, signal?: AbortSignal): Promise<boolean> {
  try {
    for (let left = attempts; left > 0 && signal?.aborted !== true; left--) {
      if ((await withDeadline(freezeMs, "freezing", live.agent.freeze())).frozen) return true;
    }
  } catch {}
  return false;
}

/** After a stop: the clock stood still meanwhile, so the guest is woken anew before its processes run. */
export async function resumeAfterStop(live: LiveGuest): Promise<void> {
  await live.resumeMonitoring();
  await live.agent.wake(identityOf(live.id));
  await live.thaw();
}

/** Asked before the VM is stopped: a QEMU that hangs, or waits for the disk, cannot be stopped in order. */
export async function requireRunning({ id, vm }: LiveGuest): Promise<void> {
  const state = await withDeadline(answerMs, `reaching the VM of capsule ${id}`, vm.state());
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
