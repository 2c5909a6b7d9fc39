/**
 * The team's capsules as they are now: one listing, kept true by events. A listing and the events run side by side, so
 * each answer is held against what is known already; the newer one counts.
 */
import { computed, type ReadonlySignal, signal } from "@preact/signals";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";

/** What this page is doing to a capsule right now. */
export type Doing = "pausing" | "resuming" | "capturing" | "destroying";

const rememberedMax = 10_000;

export class Fleet {
  readonly #known = signal<ReadonlyMap<string, CapsuleInfo> | undefined>(undefined);
  readonly #doing = signal<ReadonlyMap<string, Doing>>(new Map());
  /** Ids are never reused: what is gone stays gone, whatever an older answer says. */
  readonly #gone = new Set<string>();

  /** Newest first; undefined until they have been listed. */
  readonly capsules: ReadonlySignal<readonly CapsuleInfo[] | undefined> = computed(() => {
    const known = this.#known.value;
    return known && [...known.values()].sort(newestFirst);
  });

  get doing(): ReadonlySignal<ReadonlyMap<string, Doing>> {
    return this.#doing;
  }

  /** Undefined while nothing has been listed, null when there is no such capsule. */
  find(id: string): CapsuleInfo | null | undefined {
    const known = this.#known.value;
    return known && (known.get(id) ?? null);
  }

  /** A complete listing, asked for when `known` was what `snapshot()` gave: what it misses and was known then is gone. */
  listed(capsules: readonly CapsuleInfo[], knownBefore: ReadonlySet<string>): void {
    const after = new Map<string, CapsuleInfo>();
    for (const capsule of capsules) {
      if (!this.#gone.has(capsule.id)) after.set(capsule.id, newer(this.#known.value?.get(capsule.id), capsule));
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
    if (this.#gone.has(capsule.id)) return;
    const after = new Map(this.#known.value);
    after.set(capsule.id, newer(after.get(capsule.id), capsule));
    this.#known.value = after;
  }

  removed(id: string): void {
    this.#gone.add(id);
    if (this.#gone.size > rememberedMax) this.#gone.delete(this.#gone.values().next().value!);
    if (!this.#known.value?.has(id)) return;
    const after = new Map(this.#known.value);
    after.delete(id);
    this.#known.value = after;
  }

  /** Marks the capsule while `work` runs. */
  async during<T>(id: string, doing: Doing, work: () => Promise<T>): Promise<T> {
    this.#doing.value = new Map(this.#doing.value).set(id, doing);
    try {
      return await work();
    } finally {
      const after = new Map(this.#doing.value);
      after.delete(id);
      this.#doing.value = after;
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
