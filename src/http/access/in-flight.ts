/**
 * Two bounds per team on work in progress: a counter that refuses beyond its maximum, and a semaphore that queues. Both
 * keep state only for teams that have work in progress, and no team's work uses up another team's share.
 */

import { Counts } from "../../counts.ts";
import { CapsuleError } from "../../wire/errors.ts";

/** Requests in progress per team. */
export class InFlightLimiter {
  readonly #max: number;
  readonly #counts = new Counts();

  constructor(max: number) {
    this.#max = max;
  }

  /** Counts one more request; call the returned function once when it is closed. Throws quota_exceeded. */
  enter(teamId: string): () => void {
    const count = this.countOf(teamId);
    if (count >= this.#max) {
      throw new CapsuleError("quota_exceeded", `the team has ${count} requests under way, as many as it may`, {
        retryAfterSec: 1,
      });
    }
    this.#counts.add(teamId);
    return () => this.#counts.subtract(teamId);
  }

  countOf(teamId: string): number {
    return this.#counts.of(teamId);
  }
}

interface Slots {
  taken: number;
  /** In order of arrival; empty while a slot is free. */
  readonly waiting: Set<() => void>;
}

/** A few slots per team for requests that hold much memory, such as a whole directory listing. */
export class TeamSemaphore {
  readonly #slotsPerTeam: number;
  readonly #teams = new Map<string, Slots>();

  constructor(slotsPerTeam: number) {
    this.#slotsPerTeam = slotsPerTeam;
  }

  /** Resolves with the function that releases the slot. Rejects with the signal's reason if it aborts before. */
  acquire(teamId: string, signal: AbortSignal): Promise<() => void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted();
      const slots = this.#teams.get(teamId) ?? { taken: 0, waiting: new Set() };
      this.#teams.set(teamId, slots);
      const take = () => {
        signal.removeEventListener("abort", giveUp);
        slots.taken += 1;
        resolve(this.#releaser(teamId, slots));
      };
      const giveUp = () => {
        slots.waiting.delete(take);
        reject(signal.reason);
      };
      if (slots.taken < this.#slotsPerTeam) {
        take();
        return;
      }
      slots.waiting.add(take);
      signal.addEventListener("abort", giveUp);
    });
  }

  /** Teams that hold a slot. */
  get size(): number {
    return this.#teams.size;
  }

  /** Idempotent: a second call must not free another request's slot. */
  #releaser(teamId: string, slots: Slots): () => void {
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      slots.taken -= 1;
      const [next] = slots.waiting;
      if (next !== undefined) {
        slots.waiting.delete(next);
        next();
      } else if (slots.taken === 0) this.#teams.delete(teamId);
    };
  }
}
