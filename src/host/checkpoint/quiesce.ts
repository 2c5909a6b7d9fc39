/** Freezing a guest's processes before its CPUs are stopped, and resuming it afterwards. */
import { CapsuleError } from "../../wire/errors.ts";
import { withDeadline } from "../deadline.ts";
import { identityOf, type LiveGuest } from "../guest.ts";

/** A guest may refuse to freeze, so a pause does not wait long for it. */
const freezeMs = 2_000;
const monitorMs = 8_000;
/** FREEZE commands before a capture is given up; for each the agent waits up to 0.3 s. */
const captureAttempts = 10;

export type SavePurpose = "pause" | "capture";

/**
 * Brings a guest to where its CPUs can be stopped. The first FREEZE is sent by the constructor. A guest that does not freeze
 * can still be paused, since no other guest resumes in its place; it cannot be captured, so for a capture FREEZE is repeated.
 */
export class Quiesce {
  readonly #live: LiveGuest;
  readonly #purpose: SavePurpose;
  readonly #reconnects: number;
  readonly #givenUp = new AbortController();
  readonly #frozen: Promise<boolean>;
  #isServed = false;
  #isFrozen = false;

  constructor(live: LiveGuest, purpose: SavePurpose) {
    this.#live = live;
    this.#purpose = purpose;
    this.#reconnects = live.reconnects;
    this.#frozen = freeze(live, purpose === "capture" ? captureAttempts : 1, this.#givenUp.signal);
  }

  /** Resolves when the CPUs can be stopped. From then on the connection is not made anew, which would thaw the guest. */
  async done(): Promise<void> {
    const isFrozen = await this.#frozen;
    if (!isFrozen) await requireRunning(this.#live); // else the answer has shown that QEMU runs the VM
    this.#isServed = true;
    this.#isFrozen = isFrozen && this.#live.reconnects === this.#reconnects;
    if (this.#purpose === "capture" && !this.#isFrozen) throw notFrozen(this.#live.id);
    this.#live.suspendMonitoring();
  }

  /** Whether QEMU answers and runs the VM. Otherwise the CPUs must neither be stopped nor resumed. */
  get isServed(): boolean {
    return this.#isServed;
  }

  /** Whether the user's processes are frozen, once `done` has resolved. */
  get isFrozen(): boolean {
    return this.#isFrozen;
  }

  /** No further FREEZE is sent. */
  giveUp(): void {
    this.#givenUp.abort();
  }
}

function notFrozen(id: string): CapsuleError {
  return new CapsuleError("agent_error", `the processes of capsule ${id} could not be frozen`);
}

/**
 * Asks the agent to freeze the user's processes, up to `attempts` times; false unless it says that all are frozen. The first
 * FREEZE is sent before this returns, and none once `signal` has fired.
 */
export async function freeze(live: LiveGuest, attempts: number, signal?: AbortSignal): Promise<boolean> {
  try {
    for (let left = attempts; left > 0 && signal?.aborted !== true; left--) {
      if ((await withDeadline(freezeMs, "freezing", live.agent.freeze())).frozen) return true;
    }
  } catch {}
  return false;
}

/** After the CPUs were stopped: the guest's clock is behind, so it gets a WAKE before its processes are thawed. */
export async function resumeAfterStop(live: LiveGuest): Promise<void> {
  await live.resumeMonitoring();
  await live.agent.wake(identityOf(live.id));
  await live.thaw();
}

/** Throws unless QEMU answers and runs the VM: one that hangs, or waits for the disk, cannot be stopped in order. */
export async function requireRunning({ id, vm }: LiveGuest): Promise<void> {
  const state = await withDeadline(monitorMs, `reaching the VM of capsule ${id}`, vm.state());
  if (state === "stopped") throw new CapsuleError("no_space", `capsule ${id} waits for room on the host's disk`);
}
