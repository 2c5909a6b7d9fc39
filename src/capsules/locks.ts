/** One mutex per capsule: changes of one capsule run one after the other in FIFO order, those of different ones in parallel. */
export class CapsuleLocks {
  /** The end of each locked capsule's queue. */
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `work` when all earlier holders of the lock `id` have released it; settles as `work` does. */
  runExclusive<T>(id: string, work: () => Promise<T>): Promise<T> {
    return this.#enqueue(id, work, (result) => result);
  }

  /** As `runExclusive`, but resolves with `answer` while the lock is held until `rest` resolves. `rest` must not reject. */
  async runExclusiveDetached<T>(id: string, work: () => Promise<{ answer: T; rest: Promise<void> }>): Promise<T> {
    const { answer } = await this.#enqueue(id, work, async (result) => (await result).rest);
    return answer;
  }

  #enqueue<T>(id: string, work: () => Promise<T>, heldUntil: (result: Promise<T>) => Promise<unknown>): Promise<T> {
    const before = this.#last.get(id);
    const result = before === undefined ? work() : before.then(work);
    const released = heldUntil(result).then(
      () => {},
      () => {},
    );
    this.#last.set(id, released);
    void released.then(() => {
      if (this.#last.get(id) === released) this.#last.delete(id);
    });
    return result;
  }

  /** True while the lock is held or waited for. */
  isLocked(id: string): boolean {
    return this.#last.has(id);
  }

  /** Resolves when no lock is held or waited for. */
  async released(): Promise<void> {
    while (this.#last.size > 0) await Promise.all(this.#last.values());
  }
}
