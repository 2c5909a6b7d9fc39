/** Freezing a guest's processes before its CPUs are stopped, and resuming it afterwards. */
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { withDeadline } from "../deadline.ts";
import { identityOf, type LiveGuest } from "../guest.ts";

/** How long a guest is waited for. It may refuse to freeze and is paused nevertheless, but it is not captured. */
const freezeMs = { pause: 2_000, capture: 10_000 } as const;
/** Between two FREEZE commands of a capture. The agent itself waits up to 0.3 s before it says that not all are frozen. */
const repeatMs = 100;
const monitorMs = 8_000;

export type SavePurpose = "pause" | "capture";

/**
 * Brings a guest to where its CPUs can be stopped. The first FREEZE is sent by the constructor. A guest that does not freeze
 * can still be paused, since no other guest resumes in its place; it cannot be captured, so for a capture FREEZE is repeated.
 *
 *      answered    waits for the agent; to be called outside of the slots
 *      done        waits for QEMU at most; right before the CPUs are stopped
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
    this.#frozen = freeze(live, purpose, this.#givenUp.signal);
  }

  /** Resolves when the guest is frozen or not waited for any longer. Throws when it cannot be saved. */
  async answered(): Promise<void> {
    if (await this.#frozen) return; // the answer has shown that QEMU runs the VM
    await requireRunning(this.#live);
    if (this.#purpose === "pause") return;
    this.#isServed = true;
    throw notFrozen(this.#live.id);
  }

  /**
   * After `answered`. From here on the connection is not made anew, which would thaw the guest. `hasWaited`: whether there was a
   * wait in between, in which QEMU may have stopped the VM.
   */
  async done(hasWaited: boolean): Promise<void> {
    const isFrozen = await this.#frozen;
    if (hasWaited) await requireRunning(this.#live);
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
 * Asks the agent to freeze the user's processes, for a capture until they are; false unless it says in time that all are frozen.
 * The first FREEZE is sent before this returns, and none once `signal` has fired.
 */
export async function freeze(live: LiveGuest, purpose: SavePurpose, signal: AbortSignal): Promise<boolean> {
  const over = new AbortController();
  const last = AbortSignal.any([signal, over.signal]);
  const ask = async () => {
    while (!(await live.agent.freeze()).frozen) {
      if (purpose === "pause") return false;
      await delay(repeatMs, undefined, { signal: last });
    }
    return true;
  };
  try {
    return await withDeadline(freezeMs[purpose], "freezing", ask(), signal);
  } catch {
    return false;
  } finally {
    over.abort();
  }
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
