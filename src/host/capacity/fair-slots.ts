/**
 * A bounded number of slots for work of several owners. Beyond it each owner has a FIFO queue, and a slot that becomes free
 * goes to the owners in turn (round-robin): however much one owner has queued, another one's next piece of work starts after
 * at most one more of each owner.
 */
import { unlessAborted } from "../deadline.ts";

/** Queued pieces of work, in order of arrival; each is called when it gets a slot. */
type Queue = Set<() => void>;

export class FairSlots {
  readonly #slots: number;
  readonly #onIdle: () => void;
  #busy = 0;
  /** The owners that have work queued; the next slot goes to the first. */
  readonly #queues = new Map<string, Queue>();

  /** `onIdle` is called when the last slot in use becomes free. */
  constructor(slots: number, onIdle: () => void = () => {}) {
    this.#slots = slots;
    this.#onIdle = onIdle;
  }

  get isIdle(): boolean {
    return this.#busy === 0;
  }

  /**
   * Runs `work` at once when a slot is free, else when it is the owner's turn. When `signal` fires before that, rejects with its
   * reason. Afterwards the signal is the work's to watch.
   */
  async run<T>(owner: string, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    if (this.#busy < this.#slots) this.#busy++;
    else await this.#wait(owner, signal);
    try {
      return await work();
    } finally {
      this.#release();
    }
  }

  async #wait(owner: string, signal: AbortSignal | undefined): Promise<void> {
    const queue: Queue = this.#queues.get(owner) ?? new Set();
    this.#queues.set(owner, queue);
    try {
      await waitIn(queue, signal, () => this.#release());
    } finally {
      if (queue.size === 0 && this.#queues.get(owner) === queue) this.#queues.delete(owner);
    }
  }

  /** Hands the slot to the next owner, if any, and moves that owner to the end. */
  #release(): void {
    for (const [owner, queue] of this.#queues) {
      this.#queues.delete(owner);
      const [next] = queue;
      if (next === undefined) continue;
      queue.delete(next);
      if (queue.size > 0) this.#queues.set(owner, queue);
      next();
      return;
    }
    if (--this.#busy === 0) this.#onIdle();
  }
}

/** Resolves when called from the queue. `giveBack` is called if it was called, and `signal` fired, in the same tick. */
export async function waitIn(queue: Queue, signal: AbortSignal | undefined, giveBack: () => void): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  queue.add(resolve);
  try {
    await unlessAborted(signal, promise);
  } catch (error) {
    if (!queue.delete(resolve)) giveBack();
    throw error;
  }
}
