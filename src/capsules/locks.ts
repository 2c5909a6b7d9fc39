/**
 * One change at a time per capsule. Whoever wants to change a capsule takes a turn; changes of one capsule run one after
 * the other in the order they were asked for, changes of different capsules side by side.
 */
export class CapsuleLocks {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `work` when every earlier turn of `id` is over; resolves or rejects as `work` does. */
  runExclusive<T>(id: string, work: () => Promise<T>): Promise<T> {
    return this.#begin(id, work, (turn) => turn);
  }

  /** As `take`, for work that has its answer ahead of its end: the turn is over when `rest` is, which must not reject. */
  async runExclusiveDetached<T>(id: string, work: () => Promise<{ answer: T; rest: Promise<void> }>): Promise<T> {
    const { answer } = await this.#begin(id, work, async (turn) => (await turn).rest);
    return answer;
  }

  #begin<T>(id: string, work: () => Promise<T>, endOf: (turn: Promise<T>) => Promise<unknown>): Promise<T> {
    const before = this.#last.get(id);
    const turn = before === undefined ? work() : before.then(work);
    const over = endOf(turn).then(
      () => {},
      () => {},
    );
    this.#last.set(id, over);
    void over.then(() => {
      if (this.#last.get(id) === over) this.#last.delete(id);
    });
    return turn;
  }

  /** True while a turn of `id` runs or waits. */
  isLocked(id: string): boolean {
    return this.#last.has(id);
  }

  /** Resolves when no turn is running or waiting. */
  async settled(): Promise<void> {
    while (this.#last.size > 0) await Promise.all(this.#last.values());
  }
}
