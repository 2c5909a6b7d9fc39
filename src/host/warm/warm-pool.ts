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
import { Stock } from "./demand-pool.ts";
import type { Kind, Standby, Standbys } from "./warm-capsules.ts";

export interface PoolOptions {
  standbys: Pick<Standbys, "make" | "end">;
  pressure: Pressure;
  /** Makes ids of the form that capsules have. */
  newId: () => string;
  /** Most memory of all that are ready together; 0: no pool. */
  budgetBytes: number;
  /** Of this there are always so many, as far as half of the budget goes, but one at least. */
  staple: { kind: Kind; least: number };
  /** Told of what could not be made, and is tried again later. */
  onFailure: (error: unknown) => void;
}

const usualBytes = 64 << 20;

export class Pool {
  readonly #o: PoolOptions;
  readonly #stock: Stock<Kind, Standby>;
  readonly #reserved = new Map<string, Standby>();
  /** Ids of what is being made, ready, or being ended. */
  readonly #held = new Set<string>();

  constructor(options: PoolOptions) {
    this.#o = options;
    const { pressure, budgetBytes, staple, onFailure } = options;
    this.#stock = new Stock({
      keyOf,
      make: (kind, unwanted) => this.#make(kind, unwanted),
      end: (standby) => this.#end(standby),
      nameOf: ({ id }) => `the VM of capsule ${id}`,
      most: Number.POSITIVE_INFINITY,
      usualBytes,
      ...{ pressure, budgetBytes, staple, onFailure },
    });
  }

  /** Begins to make. Call when nothing of an earlier life is left. */
  open(): void {
    this.#stock.open();
  }

  /** The id of one that is ready, from now on the caller's: to be claimed or removed. Undefined when there is none. */
  reserve(kind: Kind): string | undefined {
    const standby = this.#stock.take(kind);
    if (standby === undefined) return undefined;
    this.#held.delete(standby.id);
    this.#reserved.set(standby.id, standby);
    return standby.id;
  }

  /** The reserved capsule of this id, handed over. */
  claim(id: string): Standby | undefined {
    const standby = this.#reserved.get(id);
    this.#reserved.delete(id);
    return standby;
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
    return this.#stock.items().map(({ source }) => source);
  }

  state(): { ready: number; target: number } {
    return this.#stock.state();
  }

  /** Ends all that was made from this template; resolves when nothing stands on its files any more. */
  drop(storage: string): Promise<void> {
    return this.#stock.drop(({ origin }) => origin.kind === "template" && origin.storage === storage);
  }

  /** Ends them all, also those that were reserved and not claimed. */
  async close(): Promise<void> {
    await this.#stock.close();
    await Promise.all([...this.#reserved.values()].map((standby) => this.#end(standby).catch(this.#o.onFailure)));
  }

  /** Resolves when as many are ready as should be, or as can be now. */
  settled(): Promise<void> {
    return this.#stock.settled();
  }

  async #make(kind: Kind, unwanted: AbortSignal): Promise<Standby> {
    const id = this.#o.newId();
    this.#held.add(id);
    try {
      return await this.#o.standbys.make(id, kind, unwanted);
    } catch (error) {
      this.#held.delete(id);
      throw error;
    }
  }

  /** A folder that cannot be removed now has no record, and is found by whoever looks for those. */
  async #end(standby: Standby): Promise<void> {
    this.#reserved.delete(standby.id);
    this.#held.add(standby.id);
    try {
      await this.#o.standbys.end(standby);
    } finally {
      this.#held.delete(standby.id);
    }
  }
}

function keyOf({ origin, shape }: Kind): string {
  const from = origin.kind === "base" ? `base ${origin.name}` : `template ${origin.storage}`;
  return `${from} ${shape.vcpus}x${shape.memoryMb}`;
}
