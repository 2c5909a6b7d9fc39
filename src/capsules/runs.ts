/**
 * The runs of capsules: from a capsule's commit to `running` until its guest is paused, destroyed or ends. A run has a guest,
 * listeners that are called once when it ends, and the policies of the service.
 */
import type { Guest } from "../host/host.ts";
import type { RunObserver, RunPolicy } from "./run-policy.ts";
import type { Capsule } from "./store.ts";

/** Why a capsule's run ended; sockets into it are closed with this. */
export type RunEnd = "paused" | "moved" | "destroyed" | "stopped" | "rebooted" | "error";

type Listener = (end: RunEnd) => void;

export class Runs {
  readonly #guests = new Map<string, Guest>();
  readonly #listeners = new Map<string, Set<Listener>>();
  readonly #policies: RunPolicy[] = [];
  readonly #observers: RunObserver[] = [];
  /** Capsules whose processes run and that are not being saved: those that the policies know. */
  readonly #released = new Set<string>();
  /** Rows that were changed before the processes ran. */
  readonly #changed = new Map<string, Capsule>();

  /** Applies `policy` to all runs. Call before the first one. */
  apply(policy: RunPolicy): void {
    this.#policies.push(policy);
  }

  /** Tells `observer` of all runs. Call before the first one. */
  observe(observer: RunObserver): void {
    this.#observers.push(observer);
  }

  /** The live guest of a running capsule. */
  guest(id: string): Guest | undefined {
    return this.#guests.get(id);
  }

  guests(): Iterable<Guest> {
    return this.#guests.values();
  }

  begin(id: string, guest: Guest): void {
    this.#guests.set(id, guest);
  }

  /** The guest's processes run now. */
  released(row: Capsule, guest: Guest, isAdopted: boolean): void {
    if (!this.has(row.id, guest)) return;
    const latest = this.#changed.get(row.id) ?? row;
    this.#changed.delete(row.id);
    this.#released.add(row.id);
    for (const policy of this.#policies) policy.began(latest, isAdopted);
    for (const observer of this.#observers) observer.began(latest, guest, isAdopted);
  }

  /** The team has changed settings of the capsule; nothing happens when it has no run. */
  changed(row: Capsule): void {
    if (this.#released.has(row.id)) for (const policy of this.#policies) policy.changed(row);
    else if (this.#guests.has(row.id)) this.#changed.set(row.id, row);
  }

  saving(id: string): void {
    this.#released.delete(id);
    for (const policy of this.#policies) policy.ended(id);
  }

  saveFailed(row: Capsule): void {
    this.#released.add(row.id);
    this.#changed.delete(row.id);
    for (const policy of this.#policies) policy.pauseFailed(row);
  }

  /** Whether the capsule's run is still that of `guest`. */
  has(id: string, guest: Guest): boolean {
    return this.#guests.get(id) === guest;
  }

  end(id: string, guest: Guest, end: RunEnd): void {
    for (const policy of this.#policies) policy.ended(id);
    if (this.has(id, guest)) {
      for (const map of [this.#guests, this.#changed, this.#released]) map.delete(id);
      for (const observer of this.#observers) observer.ended(id);
    }
    const listeners = this.#listeners.get(id) ?? [];
    this.#listeners.delete(id);
    for (const listener of listeners) listener(end);
  }

  /** Calls `listener` once, when the capsule's run ends; the returned function removes it. */
  onEnd(id: string, listener: Listener): () => void {
    const listeners = this.#listeners.get(id) ?? new Set();
    this.#listeners.set(id, listeners.add(listener));
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.#listeners.get(id) === listeners) this.#listeners.delete(id);
    };
  }

  close(): void {
    for (const policy of this.#policies) policy.close();
  }
}
