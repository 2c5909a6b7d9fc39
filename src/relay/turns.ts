/**
 * The turns of capsules on the event loop. Work for a capsule is timed; one that has used its share of a tick has its sockets paused,
 * and they are resumed a few in each later tick, from the capsules in turn. However many frames or bytes come for one, a tick pays for
 * a share of each.
 */

/** Time for which the sockets of one capsule are read in one tick of the event loop; the last read may exceed it. */
const tickShareMs = 0.5;
/** Capsules whose sockets are resumed in one tick. */
const resumedPerTick = 8;
/** Sockets of one capsule that are resumed in one tick. */
const resumedOfOne = 4;

export class Turns {
  readonly #waiting = new Map<Share, Set<() => void>>();
  #isScheduled = false;

  wait(share: Share, resume: () => void): void {
    const queue = this.#waiting.get(share);
    if (queue !== undefined) queue.add(resume);
    else this.#waiting.set(share, new Set([resume]));
    this.#schedule();
  }

  forget(share: Share): void {
    this.#waiting.delete(share);
  }

  /** Once in a tick, whichever capsule waits again during a turn. */
  #schedule(): void {
    if (this.#isScheduled || this.#waiting.size === 0) return;
    this.#isScheduled = true;
    setImmediate(() => this.#next());
  }

  #next(): void {
    this.#isScheduled = false;
    for (const [share, queue] of [...this.#waiting].slice(0, resumedPerTick)) {
      this.#waiting.delete(share);
      const chosen = [...queue].slice(0, resumedOfOne);
      for (const resume of chosen) queue.delete(resume);
      if (queue.size > 0) this.#waiting.set(share, queue);
      for (const resume of chosen) resume();
    }
    this.#schedule();
  }
}

/** The share of one capsule. */
export class Share {
  readonly #turns: Turns;
  #tickMs = 0;
  #isTickOpen = false;
  readonly #endTick = () => {
    this.#tickMs = 0;
    this.#isTickOpen = false;
  };

  constructor(turns: Turns) {
    this.#turns = turns;
  }

  /** Does work for something that was read. False: `resume` is called at a later tick, and nothing may be read until then. */
  spend(work: () => void, resume: () => void): boolean {
    const before = performance.now();
    work();
    this.#tickMs += performance.now() - before;
    if (!this.#isTickOpen) {
      this.#isTickOpen = true;
      setImmediate(this.#endTick);
    }
    if (this.#tickMs < tickShareMs) return true;
    this.#turns.wait(this, resume);
    return false;
  }

  end(): void {
    this.#turns.forget(this);
  }
}
