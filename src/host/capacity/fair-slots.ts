/**
 * A bounded number of slots for work of several owners. Beyond it each owner has a FIFO queue, and a slot that becomes free
 * goes to the owners in turn (round-robin): however much one owner has queued, another one's next piece of work starts after
 * at most one more of each owner. An owner can be bounded to fewer slots than there are; its queue is passed over while it has them.
 */
import { Counts } from "../../counts.ts";
import { unlessAborted } from "../deadline.ts";

/** Queued pieces of work, in order of arrival; each is called when it gets a slot. */
type Queue = Set<() => void>;

export interface SlotOptions {
  /** Slots of one owner at the same time; all by default. */
  perOwner?: number;
  /** Called when the last slot in use becomes free. */
  onIdle?: () => void;
}

export class FairSlots {
  readonly #slots: number;
  readonly #perOwner: number;
  readonly #onIdle: () => void;
  /** Slots in use, by owner. */
  readonly #busy = new Counts();
  /** The owners that have work queued; the next slot goes to the first. */
  readonly #queues = new Map<string, Queue>();

  constructor(slots: number, { perOwner = slots, onIdle = () => {} }: SlotOptions = {}) {
    this.#slots = slots;
    this.#perOwner = perOwner;
    this.#onIdle = onIdle;
  }

  get isIdle(): boolean {
    return this.#busy.sum === 0;
  }

  /**
   * Runs `work` at once when a slot is free, else when it is the owner's turn, and tells it whether it has waited. When `signal`
   * fires before that, rejects with its reason. Afterwards the signal is the work's to watch.
   */
  async run<T>(owner: string, work: (hasWaited: boolean) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const isFree = this.#busy.sum < this.#slots && this.#busy.of(owner) < this.#perOwner;
    if (isFree) this.#busy.add(owner);
    else await this.#wait(owner, signal);
    try {
      return await work(!isFree);
    } finally {
      this.#release(owner);
    }
  }

  async #wait(owner: string, signal: AbortSignal | undefined): Promise<void> {
    const queue: Queue = this.#queues.get(owner) ?? new Set();
    this.#queues.set(owner, queue);
    try {
      await waitIn(queue, signal, () => this.#release(owner));
    } finally {
      if (queue.size === 0 && this.#queues.get(owner) === queue) this.#queues.delete(owner);
    }
  }

  /** Hands the slot to the next owner that may have one, and moves that owner to the end. */
  #release(from: string): void {
    this.#busy.subtract(from);
    for (const [owner, queue] of this.#queues) {
      if (this.#busy.of(owner) >= this.#perOwner) continue;
      this.#queues.delete(owner);
      const [next] = queue;
      if (next === undefined) continue;
      queue.delete(next);
      if (queue.size > 0) this.#queues.set(owner, queue);
      this.#busy.add(owner);
      next();
      return;
    }
    if (this.isIdle) this.#onIdle();
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
