/**
 * One change at a time per capsule. Whoever wants to change a capsule takes a turn; turns of one capsule run one after
 * the other in the order they were asked for, turns of different capsules side by side.
 */
export class Turns {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `work` when every earlier turn of `id` is over; resolves or rejects as `work` does. */
  take<T>(id: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(id);
    const turn = before === undefined ? work() : before.then(work);
    const over = turn.then(
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
  isTaken(id: string): boolean {
    return this.#last.has(id);
  }

  /** Resolves when no turn is running or waiting. */
  async settled(): Promise<void> {
    while (this.#last.size > 0) await Promise.all(this.#last.values());
  }
}
