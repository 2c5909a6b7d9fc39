/**
 * Decisions about who holds a capsule: one of each capsule at a time, in order of arrival. A capsule that is to be destroyed, for
 * example, is not resumed between the decision and the commit that follows it.
 */
import { CapsuleLocks } from "./locks.ts";

export class Decisions {
  readonly #locks = new CapsuleLocks();

  /**
   * Calls `ask`, which checks what it needs and asks for the decision; then `commit`, in the same turn as the decision, and returns or
   * resolves with its result. `hasWaited`: other changes may have come since `ask` was called. Fails as either of them, or the
   * decision, does.
   */
  make<T>(id: string, ask: () => Promise<void> | undefined, commit: (hasWaited: boolean) => T): T | Promise<T> {
    if (this.isUnderWay(id)) return this.#locks.runExclusive(id, () => finish(ask(), commit));
    const decided = ask();
    return decided === undefined ? commit(false) : this.#locks.runExclusive(id, () => finish(decided, commit));
  }

  /** Whether a decision about this capsule is awaited. */
  isUnderWay(id: string): boolean {
    return this.#locks.isLocked(id);
  }

  /** Resolves when none is awaited. */
  ended(): Promise<void> {
    return this.#locks.released();
  }
}

async function finish<T>(decided: Promise<void> | undefined, commit: (hasWaited: boolean) => T): Promise<T> {
  if (decided !== undefined) await decided;
  return commit(decided !== undefined);
}
