/**
 * Times by id, such as that of a capsule's last activity, which are written once a second in place of at each change. Thousands of
 * rows in one transaction would hold the event loop up for 0.1 s, so they are written in parts, with a turn of the loop between two.
 */
import { setImmediate as nextTurn } from "node:timers/promises";

/** Rows of one transaction: some 7 ms. */
export const partRows = 100;

export class UnwrittenTimes {
  readonly #write: (times: Map<string, number>) => void;
  readonly #times = new Map<string, number>();
  #isWriting = false;

  constructor(write: (times: Map<string, number>) => void) {
    this.#write = write;
  }

  get(id: string): number | undefined {
    return this.#times.get(id);
  }

  set(id: string, atMs: number): void {
    this.#times.set(id, atMs);
  }

  delete(id: string): void {
    this.#times.delete(id);
  }

  /** Writes all at once: for the end of the service. Nothing is left to parts that are being written. */
  flush(): void {
    if (this.#times.size === 0) return;
    this.#write(this.#times);
    this.#times.clear();
  }

  /** Writes those of now, in parts, unless an earlier call still does. Rejects when a part cannot be written; it stays unwritten. */
  async flushInParts(): Promise<void> {
    if (this.#isWriting) return;
    this.#isWriting = true;
    try {
      const ids = [...this.#times.keys()];
      for (let from = 0; from < ids.length; from += partRows) {
        if (from > 0) await nextTurn();
        this.#writePart(ids.slice(from, from + partRows));
      }
    } finally {
      this.#isWriting = false;
    }
  }

  /** Leaves out ids that were forgotten or written meanwhile. */
  #writePart(ids: string[]): void {
    const part = new Map<string, number>();
    for (const id of ids) {
      const atMs = this.#times.get(id);
      if (atMs !== undefined) part.set(id, atMs);
    }
    if (part.size === 0) return;
    this.#write(part);
    for (const id of part.keys()) this.#times.delete(id);
  }
}
