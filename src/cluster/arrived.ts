/**
 * Paused capsules that were running, and are resumed here: those that another host has moved here, and those whose move from here has come
 * to nothing. A resume that fails is tried again; after the last attempt the capsule is a paused one as any (docs/adr/0055).
 */
import type { Clock } from "../capsules/clock.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";

export interface ArrivedOptions {
  store: Pick<CapsuleStore, "get" | "leaving" | "moving" | "onRow">;
  holding: Pick<HoldingRows, "setMoving">;
  clock: Pick<Clock, "ticks">;
  log: Log;
  resume: (row: Capsule) => Promise<void>;
  /** A paused capsule belongs to no move any more. */
  onPaused: (id: string) => void;
}

interface Attempts {
  failures: number;
  dueTicks: number;
}

/** After a failure, twice as long after each further one: five minutes in all. */
const [pauseMs, pauseMaxMs, attemptsMax] = [1_000, 60_000, 10];

export class Arrived {
  readonly #options: ArrivedOptions;
  readonly #attempts = new Map<string, Attempts>();
  readonly #underWay = new Map<string, Promise<void>>();

  constructor(options: ArrivedOptions) {
    this.#options = options;
    const { store } = options;
    store.onRow((id) => {
      if (!store.moving.has(id)) return;
      const row = store.get(id);
      if (row === undefined || (row.status !== "paused" && row.intent === null)) this.#end(id);
    });
  }

  /** The capsule is paused here. `isAwaited`: a request resumes it, and this host does so a second later if that has not. */
  take(id: string, isAwaited = false): void {
    const { store, clock } = this.#options;
    store.moving.set(id, "here");
    this.#attempts.set(id, { failures: 0, dueTicks: clock.ticks() + (isAwaited ? pauseMs : 0) });
    this.round();
  }

  /** Tries all again that are due. */
  round(): void {
    const now = this.#options.clock.ticks();
    for (const [id, { dueTicks }] of this.#attempts) {
      if (dueTicks > now || this.#underWay.has(id)) continue;
      const end = this.#try(id).finally(() => this.#underWay.delete(id));
      this.#underWay.set(id, end);
    }
  }

  /** Resolves when no attempt is under way. */
  async ended(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  async #try(id: string): Promise<void> {
    const { store, clock, log, resume } = this.#options;
    const row = store.get(id);
    if (row === undefined || row.intent !== null) return; // a request resumes it, or it is being destroyed
    try {
      await resume(row);
    } catch (error) {
      const attempts = this.#attempts.get(id);
      const now = store.get(id);
      if (attempts === undefined || now?.status !== "paused" || now.intent !== null) return;
      const failures = attempts.failures + 1;
      if (failures >= attemptsMax) {
        log.error({ err: error, capsule: id }, "a capsule that was moved could not be resumed; it stays paused");
        this.#giveUp(id);
        return;
      }
      log.warn({ err: error, capsule: id }, "a capsule that was moved could not be resumed; it will be tried again");
      const waitMs = Math.min(pauseMs * 2 ** attempts.failures, pauseMaxMs);
      this.#attempts.set(id, { failures, dueTicks: clock.ticks() + waitMs });
    }
  }

  #giveUp(id: string): void {
    this.#options.holding.setMoving(id, false);
    this.#end(id);
    this.#options.onPaused(id);
  }

  #end(id: string): void {
    this.#options.store.moving.delete(id);
    this.#attempts.delete(id);
  }
}
