/** Counters of capsules' connections: kept in memory, and written in parts without an fsync, as their last activity is. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { NetworkCounts, NetworkRows } from "../db/network-rows.ts";
import { partRows } from "../db/unwritten-times.ts";

const none: NetworkCounts = { connections: 0, denied: 0, bytesOut: 0, bytesIn: 0 };

export class NetworkCounters {
  readonly #rows: NetworkRows;
  readonly #unwritten = new Map<string, NetworkCounts>();
  #isWriting = false;

  constructor(rows: NetworkRows) {
    this.#rows = rows;
  }

  add(id: string, added: NetworkCounts): void {
    this.#unwritten.set(id, sum(this.#unwritten.get(id) ?? none, added));
  }

  /** Since the capsule's create. */
  of(id: string): NetworkCounts {
    return sum(this.#rows.of(id) ?? none, this.#unwritten.get(id) ?? none);
  }

  /** Writes all at once: for the end of the service. */
  flush(): void {
    this.#write([...this.#unwritten]);
  }

  /** Writes those of now, in parts, unless an earlier call still does. Rejects when a part cannot be written; it stays unwritten. */
  async flushInParts(): Promise<void> {
    if (this.#isWriting) return;
    this.#isWriting = true;
    try {
      const ids = [...this.#unwritten.keys()];
      for (let from = 0; from < ids.length; from += partRows) {
        if (from > 0) await nextTurn();
        this.#write(this.#entries(ids.slice(from, from + partRows)));
      }
    } finally {
      this.#isWriting = false;
    }
  }

  /** Leaves out those that were written meanwhile. */
  #entries(ids: string[]): [id: string, added: NetworkCounts][] {
    return ids.flatMap((id) => {
      const added = this.#unwritten.get(id);
      return added === undefined ? [] : [[id, added]];
    });
  }

  #write(part: [id: string, added: NetworkCounts][]): void {
    if (part.length === 0) return;
    this.#rows.add(part);
    for (const [id] of part) this.#unwritten.delete(id);
  }
}

function sum(one: NetworkCounts, other: NetworkCounts): NetworkCounts {
  return {
    connections: one.connections + other.connections,
    denied: one.denied + other.denied,
    bytesOut: one.bytesOut + other.bytesOut,
    bytesIn: one.bytesIn + other.bytesIn,
  };
}
