/**
 * The work behind the state machine's arrows. Each method takes one capsule along one arrow while it holds that capsule's
 * lock, in one pattern: the intent is in the row already; the host does the work; the row is committed by compare-and-set;
 * only then is the way back given up (the VM ended, the checkpoint removed). A failure before the commit is undone.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { Admitted, Guest, GuestEnd, Host, ReserveShare, Turn } from "../host/host.ts";
import type { Step } from "../host/steps.ts";
import type { Log } from "../log.ts";
import { CapsuleError } from "../wire/errors.ts";
import { Abortables } from "./abortables.ts";
import type { Activity } from "./activity.ts";
import type { Adoptions } from "./adoptions.ts";
import type { Clock } from "./clock.ts";
import { asAgentError, justEnded, reasonOf } from "./failures.ts";
import { participles } from "./lifecycle.ts";
import type { CapsuleLocks } from "./locks.ts";
import { originOf } from "./origin.ts";
import { type CaptureSteps, Undecided } from "./ownership.ts";
import type { Runs } from "./runs.ts";
import { type Operate, requireGuest, Stops } from "./stops.ts";
import { type Capsule, type CapsuleStore, missing } from "./store.ts";

/** Runs `work` and records its duration and outcome. */
export type Observe = <T>(operation: Operation, capsuleId: string, work: () => Promise<T>) => Promise<T>;
type Work<T> = (signal: AbortSignal) => Promise<T>;
export type Operation = "boot" | "reboot" | "start" | "resume" | "pause" | "stop" | "capture";

export interface TransitionsOptions {
  store: CapsuleStore;
  host: Host;
  locks: CapsuleLocks;
  runs: Runs;
  adoptions: Adoptions;
  activity: Activity;
  clock: Clock;
  log: Log;
  step: Step;
  observe: Observe;
  /** Awaited before a guest that was started or restored counts as running. Must not reject. */
  beforeRun: (teamId: string, guest: Guest) => Promise<void>;
  /** Whose part of the disk's reserve the team's pauses use. */
  shareOf: (teamId: string) => ReserveShare;
  /** Called when a capsule no longer needs its template's files. */
  onFreed: (storage: string) => Promise<void>;
}

/** Delay of a VM's end after its pause is answered, so that the client reads the answer first on a busy machine. */
const endDelayMs = 2;

export class Transitions {
  readonly #options: TransitionsOptions;
  /** Starts, restores, and saves and captures that wait for their turn. */
  readonly #abortables = new Abortables();
  readonly #stops: Stops;

  constructor(options: TransitionsOptions) {
    this.#options = options;
    const operate: Operate = (row, work) => this.#abortable("stop", row.id, work);
    this.#stops = new Stops({ ...options, operate, reboot: (row) => this.reboot(row) });
  }

  /** starting → running, or error. `admitted`: the memory that is set aside for it. */
  boot(row: Capsule, admitted?: Admitted): Promise<void> {
    const { host } = this.#options;
    const start = (turn: Turn) => host.start(row.id, originOf(row), row, { ...turn, admitted });
    // A VM may run whose row could not be committed.
    return this.#begin(row, "boot", start, () => host.remove(row.id));
  }

  /** As `boot`, from the disk of a capsule whose guest has reset itself; the disk stays, whatever happens. */
  reboot(row: Capsule): Promise<void> {
    const { host } = this.#options;
    const start = (turn: Turn) => host.boot(row.id, turn);
    return this.#begin(row, "reboot", start, () => host.reap(row.id, "gone"));
  }

  #begin(
    row: Capsule,
    operation: Operation,
    bring: (turn: Turn) => Promise<Guest>,
    undo: () => Promise<void>,
  ): Promise<void> {
    const { store, locks, log, step, beforeRun } = this.#options;
    return locks.runExclusive(row.id, async () => {
      if (store.isBeingDestroyed(row.id)) return;
      try {
        const turn = (signal: AbortSignal) => bring({ owner: row.teamId, signal });
        const guest = await this.#abortable(operation, row.id, turn);
        await beforeRun(row.teamId, guest);
        const running = store.commit(row, "ready", this.#startedNow());
        step("running.committed");
        if (running !== undefined) await this.run(guest, running);
      } catch (error) {
        if (store.isBeingDestroyed(row.id)) return; // the destroy waits for this lock and removes what there is
        log.error({ err: error, capsule: row.id }, "capsule did not start");
        await undo().catch(() => {});
        this.#fail(row, reasonOf(error));
      }
    });
  }

  /**
   * running → paused. `row` carries the intent. Resolves when checkpoint and row are durable. The stopped VM is ended after
   * that, with the lock held: the kernel takes milliseconds to free its memory, which would delay the answer. `owner`: whose
   * turn among the saves it takes. `end`: the reason that its sockets are told.
   */
  pause(row: Capsule, owner = row.teamId, end: "paused" | "moved" = "paused"): Promise<Capsule> {
    const { store, locks, runs, step } = this.#options;
    return locks.runExclusiveDetached(row.id, async () => {
      const guest = requireGuest(row.id, this.#options);
      await this.#save(row, guest, "pause", owner);
      let paused: Capsule | undefined;
      try {
        paused = store.commit(row, "pause");
      } catch (error) {
        await this.#runOn(row, guest);
        throw error;
      }
      step("paused.committed");
      runs.end(row.id, guest, end);
      const rest = this.#endPaused(row.id, guest);
      if (paused !== undefined) return { answer: paused, rest };
      await rest;
      throw missing(row.id);
    });
  }

  /** running → stopped. `row` carries the intent. */
  stop(row: Capsule): Promise<Capsule> {
    return this.#stops.stop(row);
  }

  /** paused → running. `row` carries the intent; `admitted` as for `boot`. */
  resume(row: Capsule, admitted: Admitted): Promise<Capsule> {
    const { host } = this.#options;
    return this.#revive(row, "resume", (turn) => host.restore(row.id, { ...turn, admitted }));
  }

  /** stopped or error → running, from its disk. As `resume`. */
  start(row: Capsule, admitted: Admitted): Promise<Capsule> {
    const { host } = this.#options;
    return this.#revive(row, "start", (turn) => host.boot(row.id, { ...turn, admitted }));
  }

  #revive(row: Capsule, trigger: "resume" | "start", bring: (turn: Turn) => Promise<Guest>): Promise<Capsule> {
    const { store, locks, step, beforeRun } = this.#options;
    return locks.runExclusive(row.id, async () => {
      if (store.isBeingDestroyed(row.id)) throw missing(row.id);
      let guest: Guest | undefined;
      let running: Capsule | undefined;
      try {
        const turn = (signal: AbortSignal) => bring({ owner: row.teamId, signal });
        guest = await this.#abortable(trigger, row.id, turn);
        await beforeRun(row.teamId, guest);
        running = store.commit(row, trigger, { ...this.#startedNow(), errorReason: null });
      } catch (error) {
        if (guest !== undefined) await this.#endStoppedVm(row.id, guest);
        if (store.isBeingDestroyed(row.id)) throw missing(row.id);
        store.clearIntent(row);
        const failed = `capsule ${row.id} could not be ${participles[trigger]} and is still ${row.status}`;
        throw asAgentError(error, failed);
      }
      step("running.committed");
      if (running === undefined) throw missing(row.id); // the destroy waits for this lock and ends the guest
      await this.run(guest, running);
      return running;
    });
  }

  /** running → gone, its files in a template. */
  capture(row: Capsule, storage: string, { keep, commit }: CaptureSteps): Promise<void> {
    const { host, locks, runs, log, step } = this.#options;
    return locks.runExclusive(row.id, async () => {
      const guest = requireGuest(row.id, this.#options);
      await this.#save(row, guest, "capture", row.teamId);
      try {
        const captured = await this.#abortables.run(row.id, async (signal) => {
          const made = await host.capture(guest, storage, { owner: row.teamId, signal });
          await keep?.(made, signal);
          return made;
        });
        await commit(captured);
        step("captured.committed");
      } catch (error) {
        if (error instanceof Undecided) throw error;
        if (!this.#options.store.isBeingDestroyed(row.id)) await this.#runOn(row, guest);
        await host.removeTemplate(storage).catch(() => {}); // left to the reconciler
        throw asAgentError(error, `capsule ${row.id} could not be captured and is still running`);
      }
      runs.end(row.id, guest, "destroyed");
      await this.#erase(row).catch((error: unknown) => {
        // The template is committed; the reconciler removes the rest of the capsule.
        log.error({ err: error, capsule: row.id }, "a captured capsule could not be removed");
      });
    });
  }

  /** any → gone. `row` carries the intent. */
  destroy(row: Capsule): Promise<void> {
    const { host, locks, runs, step, adoptions } = this.#options;
    step("destroy.committed");
    this.#abortables.abort(row.id, missing(row.id));
    adoptions.abort(row.id, missing(row.id));
    const busy = locks.isLocked(row.id) ? runs.guest(row.id) : undefined;
    if (busy !== undefined) host.abandon(busy);
    return locks.runExclusive(row.id, async () => {
      const guest = runs.guest(row.id);
      if (guest !== undefined) runs.end(row.id, guest, "destroyed");
      await this.#erase(row);
    });
  }

  /**
   * Ends the VM, whatever change is under way: a run, a start or a late adoption → error, a resume fails. False: none of these, as in
   * the first 30 s of an adoption.
   */
  endVm(id: string, reason: string): boolean {
    const { host, locks, runs, adoptions } = this.#options;
    const guest = runs.guest(id);
    const isChanging = this.#abortables.abort(
      id,
      guest === undefined ? new CapsuleError("no_capacity", reason) : justEnded(id),
    );
    if (guest === undefined) return isChanging || adoptions.endVm(id, reason);
    if (locks.isLocked(id)) host.abandon(guest);
    this.#stops.ended(id, guest, { kind: "lost", reason });
    return true;
  }

  /** Undoes a change whose failure could not be written to the row at the time. */
  undo(row: Capsule): Promise<void> {
    const { host, store, locks } = this.#options;
    return locks.runExclusive(row.id, async () => {
      if (store.get(row.id)?.revision !== row.revision) return;
      if (row.status === "paused") await host.reap(row.id, "kept");
      this.#undo(row);
    });
  }

  async #save(row: Capsule, guest: Guest, purpose: "pause" | "capture", owner: string): Promise<void> {
    const { host, runs, shareOf } = this.#options;
    runs.saving(row.id);
    try {
      const turn = { owner, revision: row.revision, share: () => shareOf(row.teamId) };
      const save = (signal: AbortSignal) => host.save(guest, purpose, { ...turn, signal });
      await this.#abortable(purpose, row.id, save, guest.ended);
    } catch (error) {
      this.#undo(row);
      throw asAgentError(error, `capsule ${row.id} could not be paused`);
    }
  }

  /** Undoes a save. A guest that cannot run on is ended, and `Stops.ended` takes the capsule to `error`. */
  async #runOn(row: Capsule, guest: Guest): Promise<void> {
    const { host, log } = this.#options;
    await host.unsave(guest).catch((error: unknown) => {
      log.error({ err: error, capsule: row.id }, "capsule could not be set running again");
    });
    this.#undo(row);
  }

  #undo(row: Capsule): void {
    const { store, runs } = this.#options;
    const cleared = store.clearIntent(row);
    if (cleared?.status === "running") runs.saveFailed(cleared);
  }

  /**
   * The row says running: lets commands in and releases the guest, with nothing in between, since a guest refuses a command that
   * it gets before its release. The caller holds the lock, so that no policy can pause an adopted guest before its old checkpoint is
   * removed.
   */
  async run(guest: Guest, row: Capsule, isAdopted = false): Promise<void> {
    const { host, runs, adoptions, log } = this.#options;
    runs.begin(row.id, guest);
    adoptions.end(row.id);
    const { wakeProblems: problems } = guest;
    if (problems.length > 0) log.warn({ capsule: row.id, problems }, "a capsule runs, and its wake could not do all");
    void guest.ended.then((end) => this.#stops.ended(row.id, guest, end));
    await host.release(guest).catch((error: unknown) => {
      // The agent is gone; `Stops.ended` follows and takes the capsule to `error`.
      log.warn({ err: error, capsule: row.id }, "capsule could not be released");
    });
    runs.released(row, guest, isAdopted);
  }

  /** The reconciler retries a commit that fails here. */
  #fail(row: Capsule, errorReason: string): void {
    const { store, log } = this.#options;
    try {
      store.commit(row, "fail", { errorReason });
    } catch (error) {
      log.error({ err: error, capsule: row.id }, "a failure could not be recorded");
    }
  }

  /** Runs `work` observed, with a signal that fires when a destroy begins or the guest ends. */
  #abortable<T>(operation: Operation, id: string, work: Work<T>, ended?: Promise<GuestEnd>): Promise<T> {
    return this.#abortables.run(id, (signal) => this.#options.observe(operation, id, () => work(signal)), ended);
  }

  /** One instant for both columns. */
  #startedNow(): { startedAt: number; lastUpdated: number } {
    const now = this.#options.clock.now();
    return { startedAt: now, lastUpdated: now };
  }

  async #endPaused(id: string, guest: Guest): Promise<void> {
    await delay(endDelayMs);
    await this.#endStoppedVm(id, guest);
  }

  /** A failure is logged; the next resume, destroy or start ends the VM. */
  async #endStoppedVm(id: string, guest: Guest): Promise<void> {
    const { host, log } = this.#options;
    await host.end(guest).catch((error: unknown) => {
      log.error({ err: error, capsule: id }, "the VM of a capsule that was paused or not started has not ended");
    });
  }

  async #erase(row: Capsule): Promise<void> {
    const { host, store, activity, onFreed } = this.#options;
    await host.remove(row.id);
    store.remove(row.id);
    activity.forget(row.id);
    if (row.storage !== null) await onFreed(row.storage);
  }
}
