/**
 * Capsules made before anybody asked: restored, woken, exercised with a first command, and then stopped. Whoever creates
 * a capsule of that kind is given one, id and folder and VM together; all that is left to do is to let its CPUs run and
 * to wake it anew, with the time and randomness of that moment.
 *
 *   making ──► ready ──reserve──► reserved ──claim──► the host's, a guest like any other
 *                └─ surplus, pressure, its template gone, shutdown: ended, folder removed
 *
 * A pooled capsule has a folder and a journal like any other and no record above; so after a crash it is a folder without
 * a record, and goes the way of all of those. Only the one who holds it knows that it is none.
 *
 * How many there are of which kind, and when they are made, is the stock's business.
 */
import type { Pressure } from "../capacity/pressure.ts";
import { DemandPool } from "./demand-pool.ts";
import type { WarmCapsule, WarmCapsules, WarmKey } from "./warm-capsules.ts";

export interface WarmPoolOptions {
  capsules: Pick<WarmCapsules, "make" | "end">;
  pressure: Pressure;
  /** Makes ids of the form that capsules have. */
  newId: () => string;
  /** Most memory of all that are ready together; 0: no pool. */
  budgetBytes: number;
  /** Of this there are always so many, as far as half of the budget goes, but one at least. */
  minimum: { key: WarmKey; size: number };
  /** Told of what could not be made, and is tried again later. */
  onFailure: (error: unknown) => void;
}

const usualBytes = 64 << 20;

export class WarmPool {
  readonly #options: WarmPoolOptions;
  readonly #pool: DemandPool<WarmKey, WarmCapsule>;
  readonly #reserved = new Map<string, WarmCapsule>();
  /** Ids of what is being made, ready, or being ended. */
  readonly #held = new Set<string>();

  constructor(options: WarmPoolOptions) {
    this.#options = options;
    const { pressure, budgetBytes, minimum, onFailure } = options;
    this.#pool = new DemandPool({
      keyOf,
      make: (kind, signal) => this.#make(kind, signal),
      end: (warm) => this.#end(warm),
      nameOf: ({ id }) => `the VM of capsule ${id}`,
      maxCount: Number.POSITIVE_INFINITY,
      expectedBytes: usualBytes,
      ...{ pressure, budgetBytes, minimum, onFailure },
    });
  }

  /** Begins to make. Call when nothing of an earlier life is left. */
  open(): void {
    this.#pool.open();
  }

  /** The id of one that is ready, from now on the caller's: to be claimed or removed. Undefined when there is none. */
  reserve(kind: WarmKey): string | undefined {
    const warm = this.#pool.claim(kind);
    if (warm === undefined) return undefined;
    this.#held.delete(warm.id);
    this.#reserved.set(warm.id, warm);
    return warm.id;
  }

  /** The reserved capsule of this id, handed over. */
  claim(id: string): WarmCapsule | undefined {
    const warm = this.#reserved.get(id);
    this.#reserved.delete(id);
    return warm;
  }

  /** How many were reserved and not claimed yet. */
  get reserved(): number {
    return this.#reserved.size;
  }

  /** True of a folder that has no record and needs none. */
  holds(id: string): boolean {
    return this.#held.has(id);
  }

  /** Folders of the checkpoints that pooled VMs stand on. */
  sources(): string[] {
    return this.#pool.items().map(({ source }) => source);
  }

  state(): { ready: number; target: number } {
    return this.#pool.state();
  }

  /** Ends all that was made from this template; resolves when nothing stands on its files any more. */
  drop(storage: string): Promise<void> {
    return this.#pool.drop(({ origin }) => origin.kind === "template" && origin.storage === storage);
  }

  /** Ends them all, also those that were reserved and not claimed. */
  async close(): Promise<void> {
    await this.#pool.close();
    await Promise.all([...this.#reserved.values()].map((warm) => this.#end(warm).catch(this.#options.onFailure)));
  }

  /** Resolves when as many are ready as should be, or as can be now. */
  settled(): Promise<void> {
    return this.#pool.settled();
  }

  async #make(kind: WarmKey, signal: AbortSignal): Promise<WarmCapsule> {
    const id = this.#options.newId();
    this.#held.add(id);
    try {
      return await this.#options.capsules.make(id, kind, signal);
    } catch (error) {
      this.#held.delete(id);
      throw error;
    }
  }

  /** A folder that cannot be removed now has no record, and is found by whoever looks for those. */
  async #end(warm: WarmCapsule): Promise<void> {
    this.#reserved.delete(warm.id);
    this.#held.add(warm.id);
    try {
      await this.#options.capsules.end(warm);
    } finally {
      this.#held.delete(warm.id);
    }
  }
}

function keyOf({ origin, shape }: WarmKey): string {
  const from = origin.kind === "base" ? `base ${origin.name}` : `template ${origin.storage}`;
  return `${from} ${shape.vcpus}x${shape.memoryMb}`;
}
