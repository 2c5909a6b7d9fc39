/** The last different decisions about one capsule. A decision that comes again is counted and moves to the end. */
import type { NetworkDecision } from "../wire/network.ts";

export const decisionsMax = 100;

/** One decision, without when and how often. */
export type Noted = Omit<NetworkDecision, "at" | "count">;

export class RecentDecisions {
  readonly #kept = new Map<string, NetworkDecision>();

  get size(): number {
    return this.#kept.size;
  }

  /** `count` is added to that of the same decision. */
  add(decision: NetworkDecision): void {
    const { verdict, reason, host, address, port } = decision;
    const key = JSON.stringify([verdict, reason, host, address, port]);
    const count = Math.min(Number.MAX_SAFE_INTEGER, (this.#kept.get(key)?.count ?? 0) + decision.count);
    this.#kept.delete(key);
    this.#kept.set(key, { ...decision, count });
    if (this.#kept.size <= decisionsMax) return;
    for (const oldest of this.#kept.keys()) {
      this.#kept.delete(oldest);
      return;
    }
  }

  /** Oldest first. */
  list(): NetworkDecision[] {
    return [...this.#kept.values()];
  }

  /** As `list`, and nothing is kept. */
  take(): NetworkDecision[] {
    const taken = this.list();
    this.#kept.clear();
    return taken;
  }
}
