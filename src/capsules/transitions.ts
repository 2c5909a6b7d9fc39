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
import type { Turns } from "./locks.ts";
import type { Newcomers } from "./newcomers.ts";
import { type Capsule, missing, type Records } from "./store.ts";

/** Told of things nobody waits for. */
export interface Log {
  info(about: object, message: string): void;
  warn(about: object, message: string): void;
  error(about: object, message: string): void;
}

/** Why clients inside a capsule are being cut off. */
export type Parting = "paused" | "destroyed" | "stopped" | "error";

export interface ChangesOptions {
  records: Records;
  host: Host;
  turns: Turns;
  activity: Activity;
  idle: Idle;
  newcomers: Newcomers;
  clock: Clock;
  log: Log;
  step: Step;
  /** Called when a capsule no longer needs its template's files. */
  onFreed: (storage: string) => Promise<void>;
}

/** From the commit to what is left to do: until the server sleeps, a client may have no processor to read its answer with. */
const answeredMs = 2;

export class Changes {
  readonly #o: ChangesOptions;
  readonly #guests = new Map<string, Guest>();
  /** Under way. */
  readonly #starts = new Map<string, AbortController>();
  readonly #partings = new Map<string, Set<(parting: Parting) => void>>();

  constructor(options: ChangesOptions) {
    this.#o = options;
  }

  /** The live guest of a running capsule. */
  guest(id: string): Guest | undefined {
    return this.#guests.get(id);
  }

  /** Calls `listener` once, when the capsule's guest is cut off; the returned function takes it back. */
  onParting(id: string, listener: (parting: Parting) => void): () => void {
    let listeners = this.#partings.get(id);
    if (listeners === undefined) {
      listeners = new Set();
      this.#partings.set(id, listeners);
    }
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.#partings.get(id) === listeners) this.#partings.delete(id);
    };
  }

  /** starting → running, or error. `isMade`: the host has one that it made ahead of time. */
  boot(row: Capsule, isMade: boolean): Promise<void> {
    const { host, records, turns, newcomers, clock, log } = this.#o;
    return turns.take(row.id, async () => {
      try {
        if (this.#isCondemned(row.id)) return;
        const guest = await this.#whileWanted(row.id, async (unwanted) => {
          if (isMade) await newcomers.enter(row.id, unwanted);
          return await host.start(row.id, originOf(row), row, unwanted);
        });
        const running = records.settle(row, "ready", { startedAt: clock.now() });
        this.#o.step("running.committed");
        if (running !== undefined) await this.#run(guest, running);
      } catch (error) {
        if (this.#isCondemned(row.id)) return; // its destroyer waits for this turn and removes what there is
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
    const { host, records, turns, log } = this.#o;
    return turns.takeAhead(row.id, async () => {
      const guest = this.#require(row.id);
      await this.#save(row, guest, "pause");
      let paused: Capsule | undefined;
      try {
        paused = records.settle(row, "pause");
      } catch (error) {
        await this.#runOn(row, guest);
        throw error;
      }
      this.#o.step("paused.committed");
      this.#part(row.id, guest, "paused");
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
    const { host, records, turns, clock } = this.#o;
    return turns.take(row.id, async () => {
      if (this.#isCondemned(row.id)) throw missing(row.id);
      let guest: Guest | undefined;
      let running: Capsule | undefined;
      try {
        guest = await this.#whileWanted(row.id, (unwanted) => host.restore(row.id, unwanted));
        running = records.settle(row, "resume", { startedAt: clock.now() });
      } catch (error) {
        if (guest !== undefined) await host.end(guest);
        if (this.#isCondemned(row.id)) throw missing(row.id);
        records.relent(row);
        throw asAgentError(error, `capsule ${row.id} could not be resumed and is still paused`);
      }
      this.#o.step("running.committed");
      if (running === undefined) throw missing(row.id); // its destroyer waits for this turn and ends the guest
      await this.#run(guest, running);
      return running;
    });
  }

  /** running → gone, its files in a template. `commit` makes the template's record and removes the capsule's, at once. */
  capture(row: Capsule, storage: string, commit: (sizeBytes: number) => void): Promise<void> {
    const { host, turns, log } = this.#o;
    return turns.take(row.id, async () => {
      const guest = this.#require(row.id);
      await this.#save(row, guest, "capture");
      try {
        const { sizeBytes } = await host.capture(guest, storage);
        if (this.#isCondemned(row.id)) throw missing(row.id);
        commit(sizeBytes);
        this.#o.step("captured.committed");
      } catch (error) {
        if (!this.#isCondemned(row.id)) await this.#runOn(row, guest);
        await host.removeTemplate(storage).catch(() => {}); // the reconciler finds it again
        throw asAgentError(error, `capsule ${row.id} could not be captured and is still running`);
      }
      this.#part(row.id, guest, "destroyed");
      await this.#erase(row).catch((error: unknown) => {
        // The template is made and the capsule condemned; what is left of it is destroyed later.
        log.error({ err: error, capsule: row.id }, "a captured capsule could not be removed");
      });
    });
  }

  /** any → gone. `row` is condemned. */
  destroy(row: Capsule): Promise<void> {
    const { host, turns, step } = this.#o;
    step("destroy.committed");
    this.#starts.get(row.id)?.abort(missing(row.id));
    const hanging = turns.isTaken(row.id) ? this.#guests.get(row.id) : undefined;
    if (hanging !== undefined) host.abandon(hanging);
    return turns.take(row.id, async () => {
      const guest = this.#guests.get(row.id);
      if (guest !== undefined) this.#part(row.id, guest, "destroyed");
      await this.#erase(row);
    });
  }

  /** For a change that failed when its record could not be written: as its failure should have left the capsule. */
  takeBack(row: Capsule): Promise<void> {
    const { host, records, turns } = this.#o;
    return turns.take(row.id, async () => {
      if (records.get(row.id)?.generation !== row.generation) return;
      if (row.status === "paused") await host.reap(row.id);
      this.#takeBack(row);
    });
  }

  /** A guest of an earlier daemon. In a turn: idle for too long, it is paused only when its old checkpoint has been taken away. */
  adopt(row: Capsule, guest: Guest): Promise<void> {
    const idleFrom = Math.max(row.lastActiveAt ?? 0, row.startedAt ?? 0);
    return this.#o.turns.take(row.id, () => this.#run(guest, row, Math.max(0, this.#o.clock.now() - idleFrom)));
  }

  async #save(row: Capsule, guest: Guest, purpose: "pause" | "capture"): Promise<void> {
    const { host, idle } = this.#o;
    idle.unwatch(row.id);
    try {
      await host.save(guest, purpose);
    } catch (error) {
      this.#takeBack(row);
      throw asAgentError(error, `capsule ${row.id} could not be paused`);
    }
  }

  /** Takes a save back. A guest that cannot run on ends, and `ended` takes the capsule to `error`. */
  async #runOn(row: Capsule, guest: Guest): Promise<void> {
    const { host, log } = this.#o;
    await host.unsave(guest).catch((error: unknown) => {
      log.error({ err: error, capsule: row.id }, "capsule could not be set running again");
    });
    this.#takeBack(row);
  }

  /** Nothing has changed, as far as the record goes; a running capsule is watched again. */
  #takeBack(row: Capsule): void {
    const { records, idle } = this.#o;
    if (records.relent(row) !== undefined && row.status === "running") idle.watchAgain(row.id, row.timeoutSec);
  }

  /** The record says running: let the user's processes go, and watch. How long that took counts for nobody's idleness. */
  async #run(guest: Guest, row: Capsule, idleMs = 0): Promise<void> {
    const { host, idle, log } = this.#o;
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
      this.#o.records.settle(row, "fail", { errorReason });
    } catch (error) {
      this.#o.log.error({ err: error, capsule: row.id }, "a failure could not be recorded");
    }
  }

  /** The guest ended by itself: takes a turn like anyone. */
  #ended(id: string, guest: Guest, end: GuestEnd): void {
    const { host, records, turns, log } = this.#o;
    turns
      .take(id, async () => {
        if (this.#guests.get(id) !== guest) return;
        this.#part(id, guest, end.kind === "powered_off" ? "stopped" : "error");
        const row = records.get(id);
        if (row !== undefined && row.status === "running" && row.intent !== "destroy") {
          if (end.kind === "powered_off") records.settle(row, "halt");
          else records.settle(row, "fail", { errorReason: end.reason });
        }
        log.info({ capsule: id, end: end.kind, reason: end.reason }, "guest ended");
        await host.end(guest);
      })
      .catch((error: unknown) => log.error({ err: error, capsule: id }, "ending a guest failed"));
  }

  /** A VM's start, which whoever destroys the capsule meanwhile gives up. */
  async #whileWanted(id: string, start: (unwanted: AbortSignal) => Promise<Guest>): Promise<Guest> {
    const wish = new AbortController();
    this.#starts.set(id, wish);
    try {
      return await start(wish.signal);
    } finally {
      this.#starts.delete(id);
    }
  }

  async #erase(row: Capsule): Promise<void> {
    const { host, records, activity, onFreed } = this.#o;
    await host.remove(row.id);
    records.remove(row.id);
    activity.forget(row.id);
    if (row.storage !== null) await onFreed(row.storage);
  }

  #part(id: string, guest: Guest, parting: Parting): void {
    if (this.#guests.get(id) === guest) this.#guests.delete(id);
    this.#o.idle.unwatch(id);
    const listeners = this.#partings.get(id);
    this.#partings.delete(id);
    for (const listener of listeners ?? []) listener(parting);
  }

  #isCondemned(id: string): boolean {
    const row = this.#o.records.get(id);
    return row === undefined || row.intent === "destroy";
  }

  #require(id: string): Guest {
    if (this.#isCondemned(id)) throw missing(id);
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
