/**
 * The last activity of each capsule, and how many commands run in it. Kept in memory and written in parts without an
 * fsync, so that a command costs no write. A crash loses at most one flush interval (1 s) of `last_active_at`; a power cut
 * also loses the batches since the last synced commit.
 */
import { Counts } from "../counts.ts";
import type { CapsuleRows } from "../db/capsule-rows.ts";
import { UnwrittenTimes } from "../db/unwritten-times.ts";
import type { Clock } from "./clock.ts";

interface Moment {
  /** Wall clock, for `last_active_at`. */
  atMs: number;
  /** Monotonic, for the idle timer: a step of the host's wall clock must not pause a capsule. */
  ticksMs: number;
}

export class Activity {
  readonly #clock: Clock;
  readonly #last = new Map<string, Moment>();
  readonly #unwritten: UnwrittenTimes;
  /** Commands that run, by capsule. */
  readonly #busy = new Counts();
  readonly #listeners = new Set<(id: string) => void>();

  constructor(rows: CapsuleRows, clock: Clock) {
    this.#unwritten = new UnwrittenTimes((times) => rows.noteActive(times));
    this.#clock = clock;
  }

  /** Called with a capsule's id whenever its activity changes. */
  onChange(listener: (id: string) => void): void {
    this.#listeners.add(listener);
  }

  note(id: string): void {
    const atMs = this.#clock.now();
    this.#last.set(id, { atMs, ticksMs: this.#clock.ticks() });
    this.#unwritten.set(id, atMs);
    for (const listener of this.#listeners) listener(id);
  }

  /** Counts a running command until the returned function is called; further calls of it do nothing. */
  began(id: string): () => void {
    this.#busy.add(id);
    this.note(id);
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      if (!this.isBusy(id)) return; // the capsule was destroyed meanwhile
      this.#busy.subtract(id);
      this.note(id);
    };
  }

  isBusy(id: string): boolean {
    return this.#busy.of(id) > 0;
  }

  /** Epoch milliseconds; undefined when the row has the latest value. */
  lastOf(id: string): number | undefined {
    return this.#last.get(id)?.atMs;
  }

  /** Monotonic milliseconds of the last activity in this life of the daemon. */
  lastTicks(id: string): number | undefined {
    return this.#last.get(id)?.ticksMs;
  }

  forget(id: string): void {
    this.#last.delete(id);
    this.#unwritten.delete(id);
    this.#busy.set(id, 0);
  }

  flush(): void {
    this.#unwritten.flush();
  }

  /** As `UnwrittenTimes.flushInParts`. */
  flushInParts(): Promise<void> {
    return this.#unwritten.flushInParts();
  }
}
