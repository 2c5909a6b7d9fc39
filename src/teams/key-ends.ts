/** Ends of keys, told in turns of the event loop to the WebSockets and event streams that were opened with them. */
import { setImmediate as nextTurn } from "node:timers/promises";

/** A listener closes a WebSocket or ends a stream; a team can have 1 100, of one key or of as many keys. */
export const listenersPerTurn = 64;
/** Keys whose rows are read at once. */
export const keysPerTurn = 100;

export class KeyEnds {
  readonly #isLive: (keyId: string) => boolean;
  /** By key id. */
  readonly #listeners = new Map<string, Set<() => void>>();
  /** The listeners of ended keys that have not been called yet. */
  readonly #ended: Set<() => void>[] = [];
  #isSoon = false;
  #isChecking = false;

  constructor(isLive: (keyId: string) => boolean) {
    this.#isLive = isLive;
  }

  /** Calls `listener` once when the key has ended; the returned function removes it. */
  on(keyId: string, listener: () => void): () => void {
    const listeners = this.#listeners.get(keyId) ?? new Set();
    this.#listeners.set(keyId, listeners.add(listener));
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.#listeners.get(keyId) === listeners) this.#listeners.delete(keyId);
    };
  }

  /** Calls the listeners of ended keys: `listenersPerTurn` at once, unless others wait, and as many in each further turn of the loop. */
  notify(keyIds: string[]): void {
    for (const keyId of keyIds) {
      const listeners = this.#listeners.get(keyId);
      if (listeners !== undefined) this.#ended.push(listeners);
      this.#listeners.delete(keyId);
    }
    if (!this.#isSoon) this.#notify();
  }

  /** As `notify`, of all keys with listeners. */
  notifyAll(): void {
    this.notify([...this.#listeners.keys()]);
  }

  /** Looks each key with listeners up, in turns of the loop, and calls those of ended keys, unless an earlier call still does. */
  async check(): Promise<void> {
    if (this.#isChecking) return;
    this.#isChecking = true;
    try {
      const keyIds = [...this.#listeners.keys()];
      for (let from = 0; from < keyIds.length; from += keysPerTurn) {
        if (from > 0) await nextTurn();
        this.notify(keyIds.slice(from, from + keysPerTurn).filter((keyId) => !this.#isLive(keyId)));
      }
    } finally {
      this.#isChecking = false;
    }
  }

  #notify(): void {
    let called = 0;
    for (let listeners = this.#ended[0]; listeners !== undefined; listeners = this.#ended[0]) {
      for (const listener of listeners) {
        if (called === listenersPerTurn) {
          this.#isSoon = true;
          setImmediate(() => {
            this.#isSoon = false;
            this.#notify();
          });
          return;
        }
        called++;
        listeners.delete(listener);
        listener();
      }
      this.#ended.shift();
    }
  }
}
