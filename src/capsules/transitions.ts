/**
 * The mechanism behind the state machine's arrows: each method carries one capsule along one arrow, inside a turn of
 * that capsule. The pattern is always the same: the intent is already in the row; do the work on the host; commit the
 * result by compare-and-set; and only then burn the bridge (end the VM, forget the checkpoint). A failure before the
 * commit puts everything back as it was.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { Guest, GuestEnd, Host, Origin } from "../host/host.ts";
import type { Step } from "../host/steps.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Activity } from "./activity.ts";
import type { Clock } from "./clock.ts";
import type { Idle } from "./idle.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { Newcomers } from "./newcomers.ts";
import { type Capsule, type CapsuleStore, missing } from "./store.ts";

export interface Log {
  info(about: object, message: string): void;
  warn(about: object, message: string): void;
  error(about: object, message: string): void;
}

/** Why clients inside a capsule are being cut off. */
export type RunEnd = "paused" | "destroyed" | "stopped" | "error";

export interface TransitionsOptions {
  store: CapsuleStore;
  host: Host;
  locks: CapsuleLocks;
  activity: Activity;
  idle: Idle;
  newcomers: Newcomers;
  clock: Clock;
  log: Log;
  step: Step;
  onFreed: (storage: string) => Promise<void>;
}

/** From the commit to what is left to do: until the server sleeps, a client may have no processor to read its answer with. */
const answeredMs = 2;

export class Transitions {
  readonly #options: TransitionsOptions;
  readonly #guests = new Map<string, Guest>();
  /** Under way. */
  readonly #starts = new Map<string, AbortController>();
  readonly #runEndListeners = new Map<string, Set<(parting: RunEnd) => void>>();

  constructor(options: TransitionsOptions) {
    this.#options = options;
  }

  /** The live guest of a running capsule. */
  guest(id: string): Guest | undefined {
    return this.#guests.get(id);
  }

  /** Calls `listener` once, when the capsule's guest is cut off; the returned function takes it back. */
  onRunEnd(id: string, listener: (parting: RunEnd) => void): () => void {
    let listeners = this.#runEndListeners.get(id);
    if (listeners === undefined) {
      listeners = new Set();
      this.#runEndListeners.set(id, listeners);
    }
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.#runEndListeners.get(id) === listeners) this.#runEndListeners.delete(id);
    };
  }

  /** starting → running, or error. `isMade`: the host has one that it made ahead of time. */
  boot(row: Capsule, isMade: boolean): Promise<void> {
    const { host, store, locks, newcomers, clock, log } = this.#options;
    return locks.runExclusive(row.id, async () => {
      try {
        if (this.#isBeingDestroyed(row.id)) return;
        const guest = await this.#whileWanted(row.id, async (signal) => {
          if (isMade) await newcomers.enter(row.id, signal);
          return await host.start(row.id, originOf(row), row, signal);
        });
        const running = store.commit(row, "ready", { startedAt: clock.now() });
        this.#options.step("running.committed");
        if (running !== undefined) await this.#run(guest, running);
      } catch (error) {
        if (this.#isBeingDestroyed(row.id)) return; // its destroyer waits for this turn and removes what there is
        log.error({ err: error, capsule: row.id }, "capsule did not start");
        await host.remove(row.id).catch(() => {}); // of a VM that runs while its record could not be written
        this.#fail(row, reasonOf(error));
      } finally {
        newcomers.arrived(row.id);
      }
    });
  }

  /**
   * running → paused. `row` carries the intent. Resolves when the checkpoint and the record are durable. Ending the VM, which
   * stands still and is nobody's any more, is the rest of the turn: the kernel takes some milliseconds to take its memory
   * back, and would take them from whoever is being answered.
   */
  pause(row: Capsule): Promise<Capsule> {
    const { host, store, locks, log } = this.#options;
    return locks.runExclusiveDetached(row.id, async () => {
      const guest = this.#require(row.id);
      await this.#save(row, guest, "pause");
      let paused: Capsule | undefined;
      try {
        paused = store.commit(row, "pause");
      } catch (error) {
        await this.#runOn(row, guest);
        throw error;
      }
      this.#options.step("paused.committed");
      this.#endRun(row.id, guest, "paused");
      const rest = delay(answeredMs)
        .then(() => host.end(guest))
        .catch((error: unknown) =>
          log.error({ err: error, capsule: row.id }, "the VM of a paused capsule has not ended"),
        );
      if (paused === undefined) {
        await rest;
        throw missing(row.id);
      }
      return { answer: paused, rest };
    });
  }

  /** paused → running. `row` carries the intent. */
  resume(row: Capsule): Promise<Capsule> {
    const { host, store, locks, clock } = this.#options;
    return locks.runExclusive(row.id, async () => {
      if (this.#isBeingDestroyed(row.id)) throw missing(row.id);
      let guest: Guest | undefined;
      let running: Capsule | undefined;
      try {
        guest = await this.#whileWanted(row.id, (signal) => host.restore(row.id, signal));
        running = store.commit(row, "resume", { startedAt: clock.now() });
      } catch (error) {
        if (guest !== undefined) await host.end(guest);
        if (this.#isBeingDestroyed(row.id)) throw missing(row.id);
        store.clearIntent(row);
        throw asAgentError(error, `capsule ${row.id} could not be resumed and is still paused`);
      }
      this.#options.step("running.committed");
      if (running === undefined) throw missing(row.id); // its destroyer waits for this turn and ends the guest
      await this.#run(guest, running);
      return running;
    });
  }

  /** running → gone, its files in a template. `commit` makes the template's record and removes the capsule's, at once. */
  capture(row: Capsule, storage: string, commit: (sizeBytes: number) => void): Promise<void> {
    const { host, locks, log } = this.#options;
    return locks.runExclusive(row.id, async () => {
      const guest = this.#require(row.id);
      await this.#save(row, guest, "capture");
      try {
        const { sizeBytes } = await host.capture(guest, storage);
        if (this.#isBeingDestroyed(row.id)) throw missing(row.id);
        commit(sizeBytes);
        this.#options.step("captured.committed");
      } catch (error) {
        if (!this.#isBeingDestroyed(row.id)) await this.#runOn(row, guest);
        await host.removeTemplate(storage).catch(() => {}); // the reconciler finds it again
        throw asAgentError(error, `capsule ${row.id} could not be captured and is still running`);
      }
      this.#endRun(row.id, guest, "destroyed");
      await this.#erase(row).catch((error: unknown) => {
        // The template is made and the capsule condemned; what is left of it is destroyed later.
        log.error({ err: error, capsule: row.id }, "a captured capsule could not be removed");
      });
    });
  }

  /** any → gone. `row` is condemned. */
  destroy(row: Capsule): Promise<void> {
    const { host, locks, step } = this.#options;
    step("destroy.committed");
    this.#starts.get(row.id)?.abort(missing(row.id));
    const hanging = locks.isLocked(row.id) ? this.#guests.get(row.id) : undefined;
    if (hanging !== undefined) host.abandon(hanging);
    return locks.runExclusive(row.id, async () => {
      const guest = this.#guests.get(row.id);
      if (guest !== undefined) this.#endRun(row.id, guest, "destroyed");
      await this.#erase(row);
    });
  }

  /** For a change that failed when its record could not be written: as its failure should have left the capsule. */
  undo(row: Capsule): Promise<void> {
    const { host, store, locks } = this.#options;
    return locks.runExclusive(row.id, async () => {
      if (store.get(row.id)?.generation !== row.generation) return;
      if (row.status === "paused") await host.reap(row.id);
      this.#undo(row);
    });
  }

  /** A guest of an earlier daemon. In a turn: idle for too long, it is paused only when its old checkpoint has been taken away. */
  adopt(row: Capsule, guest: Guest): Promise<void> {
    const idleFrom = Math.max(row.lastActiveAt ?? 0, row.startedAt ?? 0);
    return this.#options.locks.runExclusive(row.id, () =>
      this.#run(guest, row, Math.max(0, this.#options.clock.now() - idleFrom)),
    );
  }

  async #save(row: Capsule, guest: Guest, purpose: "pause" | "capture"): Promise<void> {
    const { host, idle } = this.#options;
    idle.unwatch(row.id);
    try {
      await host.save(guest, purpose);
    } catch (error) {
      this.#undo(row);
      throw asAgentError(error, `capsule ${row.id} could not be paused`);
    }
  }

  /** Takes a save back. A guest that cannot run on ends, and `ended` takes the capsule to `error`. */
  async #runOn(row: Capsule, guest: Guest): Promise<void> {
    const { host, log } = this.#options;
    await host.unsave(guest).catch((error: unknown) => {
      log.error({ err: error, capsule: row.id }, "capsule could not be set running again");
    });
    this.#undo(row);
  }

  /** Nothing has changed, as far as the record goes; a running capsule is watched again. */
  #undo(row: Capsule): void {
    const { store, idle } = this.#options;
    if (store.clearIntent(row) !== undefined && row.status === "running") idle.watchAgain(row.id, row.timeoutSec);
  }

  /** The record says running: let the user's processes go, and watch. How long that took counts for nobody's idleness. */
  async #run(guest: Guest, row: Capsule, idleMs = 0): Promise<void> {
    const { host, idle, log } = this.#options;
    this.#guests.set(row.id, guest);
    void guest.ended.then((end) => this.#ended(row.id, guest, end));
    await host.release(guest).catch((error: unknown) => {
      // The agent is gone; `ended` will say so and take the capsule to `error`.
      log.warn({ err: error, capsule: row.id }, "capsule could not be released");
    });
    if (this.#guests.get(row.id) === guest) idle.watch(row.id, row.timeoutSec, idleMs);
  }

  /** A record that cannot be written now is found by the reconciler. */
  #fail(row: Capsule, errorReason: string): void {
    try {
      this.#options.store.commit(row, "fail", { errorReason });
    } catch (error) {
      this.#options.log.error({ err: error, capsule: row.id }, "a failure could not be recorded");
    }
  }

  /** The guest ended by itself. */
  #ended(id: string, guest: Guest, end: GuestEnd): void {
    const { host, store, locks, log } = this.#options;
    locks
      .runExclusive(id, async () => {
        if (this.#guests.get(id) !== guest) return;
        this.#endRun(id, guest, end.kind === "powered_off" ? "stopped" : "error");
        const row = store.get(id);
        if (row !== undefined && row.status === "running" && row.intent !== "destroy") {
          if (end.kind === "powered_off") store.commit(row, "halt");
          else store.commit(row, "fail", { errorReason: end.reason });
        }
        log.info({ capsule: id, end: end.kind, reason: end.reason }, "guest ended");
        await host.end(guest);
      })
      .catch((error: unknown) => log.error({ err: error, capsule: id }, "ending a guest failed"));
  }

  /** A VM's start, which a destroy meanwhile aborts. */
  async #whileWanted(id: string, start: (signal: AbortSignal) => Promise<Guest>): Promise<Guest> {
    const wish = new AbortController();
    this.#starts.set(id, wish);
    try {
      return await start(wish.signal);
    } finally {
      this.#starts.delete(id);
    }
  }

  async #erase(row: Capsule): Promise<void> {
    const { host, store, activity, onFreed } = this.#options;
    await host.remove(row.id);
    store.remove(row.id);
    activity.forget(row.id);
    if (row.storage !== null) await onFreed(row.storage);
  }

  #endRun(id: string, guest: Guest, parting: RunEnd): void {
    if (this.#guests.get(id) === guest) this.#guests.delete(id);
    this.#options.idle.unwatch(id);
    const listeners = this.#runEndListeners.get(id);
    this.#runEndListeners.delete(id);
    for (const listener of listeners ?? []) listener(parting);
  }

  #isBeingDestroyed(id: string): boolean {
    const row = this.#options.store.get(id);
    return row === undefined || row.intent === "destroy";
  }

  #require(id: string): Guest {
    if (this.#isBeingDestroyed(id)) throw missing(id);
    const guest = this.#guests.get(id);
    if (guest === undefined) throw new CapsuleError("invalid_state", `capsule ${id} has just ended`);
    return guest;
  }
}

/** What a capsule starts from: a template's files, or a built-in image by its name. */
export function originOf({ storage, template }: Pick<Capsule, "storage" | "template">): Origin {
  if (storage !== null) return { kind: "template", storage };
  return { kind: "base", name: template };
}

export function reasonOf(error: unknown): string {
  return error instanceof CapsuleError ? error.message : "an internal error; the server's log has the details";
}

const machinery = new Set(["agent_error", "internal_error", "timeout"]);

/** Failures of the machinery are the host's (502), unless they say what a client can do about them. */
function asAgentError(error: unknown, message: string): unknown {
  if (error instanceof CapsuleError && !machinery.has(error.code)) return error;
  return new CapsuleError("agent_error", `${message}: ${reasonOf(error)}`, { cause: error });
}
