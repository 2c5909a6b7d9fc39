/**
 * The team's capsules: one listing, updated by events. Listings and events are concurrent, so each answer is compared
 * with the known state of the capsule, and the newer one wins.
 */
import { computed, type ReadonlySignal, signal } from "@preact/signals";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";

/** An action of this page that is running on a capsule. */
export type Operation = "pausing" | "resuming" | "stopping" | "starting" | "capturing" | "destroying";

const removedMax = 10_000;

export class CapsuleStore {
  readonly #known = signal<ReadonlyMap<string, CapsuleInfo> | undefined>(undefined);
  readonly #operations = signal<ReadonlyMap<string, Operation>>(new Map());
  /** Removed ids. Ids are never reused, so older answers that still contain one are ignored. */
  readonly #removed = new Set<string>();

  /** Newest first; undefined before the first listing. */
  readonly capsules: ReadonlySignal<readonly CapsuleInfo[] | undefined> = computed(() => {
    const known = this.#known.value;
    return known && [...known.values()].sort(newestFirst);
  });

  get operations(): ReadonlySignal<ReadonlyMap<string, Operation>> {
    return this.#operations;
  }

  /** Undefined before the first listing, null when there is no such capsule. */
  find(id: string): CapsuleInfo | null | undefined {
    const known = this.#known.value;
    return known && (known.get(id) ?? null);
  }

  /**
   * Applies a complete listing. `knownBefore`: `knownIds()` when it was requested; ids of these that it lacks are
   * removed.
   */
  listed(capsules: readonly CapsuleInfo[], knownBefore: ReadonlySet<string>): void {
    const after = new Map<string, CapsuleInfo>();
    for (const capsule of capsules) {
      if (!this.#removed.has(capsule.id)) after.set(capsule.id, newer(this.#known.value?.get(capsule.id), capsule));
    }
    for (const [id, capsule] of this.#known.value ?? []) {
      if (!after.has(id) && !knownBefore.has(id)) after.set(id, capsule);
    }
    this.#known.value = after;
  }

  knownIds(): ReadonlySet<string> {
    return new Set(this.#known.value?.keys());
  }

  changed(capsule: CapsuleInfo): void {
    if (this.#removed.has(capsule.id)) return;
    const after = new Map(this.#known.value);
    after.set(capsule.id, newer(after.get(capsule.id), capsule));
    this.#known.value = after;
  }

  removed(id: string): void {
    this.#removed.add(id);
    if (this.#removed.size > removedMax) this.#removed.delete(this.#removed.values().next().value!);
    if (!this.#known.value?.has(id)) return;
    const after = new Map(this.#known.value);
    after.delete(id);
    this.#known.value = after;
  }

  /** Shows the operation on the capsule while `work` runs. */
  async during<T>(id: string, operation: Operation, work: () => Promise<T>): Promise<T> {
    this.#operations.value = new Map(this.#operations.value).set(id, operation);
    try {
      return await work();
    } finally {
      const after = new Map(this.#operations.value);
      after.delete(id);
      this.#operations.value = after;
    }
  }
}

function newer(known: CapsuleInfo | undefined, heard: CapsuleInfo): CapsuleInfo {
  return known !== undefined && known.lastUpdated > heard.lastUpdated ? known : heard;
}

function newestFirst(a: CapsuleInfo, b: CapsuleInfo): number {
  if (a.createdAt !== b.createdAt) return a.createdAt < b.createdAt ? 1 : -1;
  return a.id < b.id ? -1 : 1;
}
