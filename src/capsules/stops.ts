/**
 * Ends of runs after which the disk is all that is left of a capsule: stops by a client, and guests that ended by themselves. A guest
 * that has reset itself boots again.
 */
import type { Guest, GuestEnd, Host } from "../host/host.ts";
import type { Step } from "../host/steps.ts";
import type { Log } from "../log.ts";
import type { Clock } from "./clock.ts";
import { justEnded } from "./failures.ts";
import type { CapsuleLocks } from "./locks.ts";
import { Resets } from "./resets.ts";
import type { RunEnd, Runs } from "./runs.ts";
import { type Capsule, type CapsuleStore, missing } from "./store.ts";

/** Runs `work` observed, with a signal that fires when a destroy begins or the VM is to be ended. */
export type Operate = (row: Capsule, work: (signal: AbortSignal) => Promise<void>) => Promise<void>;

export interface StopsOptions {
  store: CapsuleStore;
  host: Pick<Host, "shutDown" | "end">;
  locks: CapsuleLocks;
  runs: Runs;
  clock: Clock;
  log: Log;
  step: Step;
  operate: Operate;
  /** starting → running, from the capsule's disk; `row` carries the intent. Takes the capsule's lock. */
  reboot: (row: Capsule) => Promise<void>;
}

const runEnds: Record<GuestEnd["kind"], RunEnd> = { powered_off: "stopped", reset: "rebooted", lost: "error" };

export class Stops {
  readonly #options: StopsOptions;
  readonly #resets: Resets;

  constructor(options: StopsOptions) {
    this.#options = options;
    this.#resets = new Resets(options.clock);
  }

  /** running → stopped, whatever the guest does. `row` carries the intent. */
  stop(row: Capsule): Promise<Capsule> {
    const { store, host, locks, runs, step, operate } = this.#options;
    return locks.runExclusive(row.id, async () => {
      const guest = requireGuest(row.id, this.#options);
      runs.saving(row.id);
      await operate(row, (signal) => host.shutDown(guest, signal));
      step("stop.halted");
      if (store.isBeingDestroyed(row.id)) throw missing(row.id);
      let stopped: Capsule | undefined;
      try {
        stopped = store.commit(row, "stop");
        step("stopped.committed");
      } finally {
        runs.end(row.id, guest, "stopped");
        await this.#end(row.id, guest);
      }
      if (stopped === undefined) throw missing(row.id);
      return stopped;
    });
  }

  /** The guest ended by itself, or its VM was ended for `end.reason`. */
  ended(id: string, guest: Guest, end: GuestEnd): void {
    const { locks, runs, log } = this.#options;
    locks
      .runExclusive(id, async () => {
        if (!runs.has(id, guest)) return;
        log.info({ capsule: id, end: end.kind, reason: end.reason }, "guest ended");
        const isLoop = end.kind === "reset" && !this.#resets.note(id);
        runs.end(id, guest, isLoop ? "error" : runEnds[end.kind]);
        let row: Capsule | undefined;
        try {
          row = this.#record(id, isLoop ? { kind: "lost", reason: this.#resets.reason } : end);
        } finally {
          await this.#end(id, guest);
        }
        if (row?.intent === "reboot") void this.#options.reboot(row); // it waits for this lock
      })
      .catch((error: unknown) => log.error({ err: error, capsule: id }, "ending a guest failed"));
  }

  /** The row after the end. */
  #record(id: string, end: GuestEnd): Capsule | undefined {
    const { store } = this.#options;
    const row = store.get(id);
    if (row === undefined || row.status !== "running" || row.intent === "destroy") return undefined;
    return recordEnd(store, row, end);
  }

  /** A failure is logged; the next start or destroy ends the VM. */
  async #end(id: string, guest: Guest): Promise<void> {
    const { host, log } = this.#options;
    await host.end(guest).catch((error: unknown) => {
      log.error({ err: error, capsule: id }, "the VM of a capsule that has stopped has not ended");
    });
  }
}

/** Commits the end of a running capsule's guest. A row with the intent `reboot` is to be booted by the caller. */
export function recordEnd(store: CapsuleStore, row: Capsule, end: GuestEnd): Capsule | undefined {
  if (end.kind === "powered_off") return store.commit(row, "halt");
  if (end.kind === "reset") return store.commit(row, "reset", { intent: "reboot" });
  return store.commit(row, "fail", { errorReason: end.reason });
}

/** The guest of a running capsule, for a change of it. Throws "not_found" or "invalid_state". */
export function requireGuest(id: string, { store, runs }: { store: CapsuleStore; runs: Runs }): Guest {
  if (store.isBeingDestroyed(id)) throw missing(id);
  const guest = runs.guest(id);
  if (guest === undefined) throw justEnded(id);
  return guest;
}
