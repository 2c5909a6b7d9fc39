/** The last different decisions about one capsule. A decision that comes again is counted and moves to the end. */
import type { NetworkDecision } from "../wire/network.ts";

const decisionsMax = 100;

/** One decision, without when and how often. */
export type Noted = Omit<NetworkDecision, "at" | "count">;

export class RecentDecisions {
  readonly #kept = new Map<string, NetworkDecision>();

  note(noted: Noted): void {
    const { verdict, reason, host, address, port } = noted;
    const key = JSON.stringify([verdict, reason, host, address, port]);
    const count = (this.#kept.get(key)?.count ?? 0) + 1;
    this.#kept.delete(key);
    this.#kept.set(key, { at: new Date().toISOString(), ...noted, count });
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
}
