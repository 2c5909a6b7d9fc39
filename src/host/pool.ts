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
 * Making goes on in the background, one at a time, while nothing urgent is being started, and rests as long as it worked
 * unless a kind has run out.
 */
import { Demand } from "./demand.ts";
import type { Pressure } from "./pressure.ts";
import type { Kind, Standby, Standbys } from "./standby.ts";

export interface PoolOptions {
  standbys: Pick<Standbys, "make" | "end">;
  pressure: Pressure;
  /** Makes ids of the form that capsules have. */
  newId: () => string;
  /** Most memory of all that are ready together; 0: no pool. */
  budgetBytes: number;
  /** Of this there is always one, budget permitting. */
  staple: Kind;
  /** Told of what could not be made, and is tried again later. */
  onFailure: (error: unknown) => void;
}

/** All of one kind. */
interface Shelf extends Kind {
  key: string;
  demand: Demand;
  ready: Standby[];
  /** What the last one took. */
  costBytes: number;
  failures: number;
  /** Not tried again before. */
  restsUntilMs: number;
}

const lookMs = 1_000;
/** Whoever was given one is served before it is replaced. */
const graceMs = 100;
/** Node's timers count from the beginning of a turn of its loop, and so can come early. */
const timerErrorMs = 20;
const mostShelves = 32;
/** What a pooled VM is taken to cost before one was made. */
const usualBytes = 64 << 20;
const firstRetryMs = 1_000;
const lastRetryMs = 300_000;

export class Pool {
  readonly #o: PoolOptions;
  readonly #shelves = new Map<string, Shelf>();
  readonly #reserved = new Map<string, Standby>();
  readonly #stapleKey: string;
  #making: { id: string; shelf: Shelf; done: Promise<void> } | undefined;
  readonly #ending = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  #isOpen = false;
  #replenishFromMs = 0;

  constructor(options: PoolOptions) {
    this.#o = options;
    this.#stapleKey = keyOf(options.staple);
  }

  /** Begins to make. Call when nothing of an earlier life is left. */
  open(): void {
    if (this.#o.budgetBytes === 0 || this.#isOpen) return;
    this.#isOpen = true;
    this.#shelf(this.#o.staple);
    this.#timer = setInterval(() => this.#look(), lookMs).unref();
    this.#look();
  }

  /** The id of one that is ready, from now on the caller's: to be claimed or removed. Undefined when there is none. */
  reserve(kind: Kind): string | undefined {
    if (!this.#isOpen) return undefined;
    const shelf = this.#shelf(kind);
    shelf.demand.note(performance.now());
    const standby = shelf.ready.shift();
    this.#replenishFromMs = performance.now() + graceMs;
    setTimeout(() => this.#look(), graceMs + timerErrorMs).unref();
    if (standby !== undefined) this.#reserved.set(standby.id, standby);
    return standby?.id;
  }

  /** The reserved capsule of this id, handed over. */
  claim(id: string): Standby | undefined {
    const standby = this.#reserved.get(id);
    this.#reserved.delete(id);
    return standby;
  }

  /** True of a folder that has no record and needs none. */
  holds(id: string): boolean {
    if (this.#making?.id === id || this.#ending.has(id)) return true;
    return this.#shelved().some((standby) => standby.id === id);
  }

  /** Folders of the checkpoints that pooled VMs stand on. */
  sources(): string[] {
    return this.#shelved().map(({ source }) => source);
  }

  state(): { ready: number; target: number } {
    if (!this.#isOpen) return { ready: 0, target: 0 };
    let target = 0;
    for (const shelf of this.#shelves.values()) target += this.#target(shelf);
    return { ready: this.#shelved().length, target };
  }

  /** Ends all that was made from this template; resolves when nothing stands on its files any more. */
  async drop(storage: string): Promise<void> {
    for (const [key, shelf] of this.#shelves) {
      if (shelf.origin.kind !== "template" || shelf.origin.storage !== storage) continue;
      this.#shelves.delete(key);
      if (this.#making?.shelf === shelf) await this.#making.done;
      await Promise.all(shelf.ready.splice(0).map((standby) => this.#end(standby)));
    }
  }

  /** Ends them all. */
  async close(): Promise<void> {
    this.#isOpen = false;
    clearInterval(this.#timer);
    await this.#filling;
    await this.#drain();
  }

  /** Resolves when as many are ready as should be, or as can be now. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined) await this.#filling;
  }

  #look(): void {
    if (!this.#isOpen) return;
    const { pressure } = this.#o;
    if (pressure.isHigh()) void this.#drain();
    for (const shelf of this.#shelves.values()) {
      if (shelf.ready.length > this.#target(shelf)) void this.#end(shelf.ready.shift() as Standby);
    }
    this.#filling ??= this.#fill().finally(() => {
      this.#filling = undefined;
    });
  }

  async #fill(): Promise<void> {
    for (let shelf = this.#neediest(); shelf !== undefined; shelf = this.#neediest()) {
      const beganMs = performance.now();
      const id = this.#o.newId();
      const done = this.#make(id, shelf);
      this.#making = { id, shelf, done };
      await done;
      this.#making = undefined;
      const isOut = [...this.#shelves.values()].some((each) => each.ready.length === 0 && this.#target(each) > 0);
      if (!isOut) return this.#rest(performance.now() - beganMs);
    }
  }

  /** The look after the rest goes on. */
  #rest(ms: number): void {
    for (const shelf of this.#shelves.values()) {
      shelf.restsUntilMs = Math.max(shelf.restsUntilMs, performance.now() + ms);
    }
    setTimeout(() => this.#look(), ms + timerErrorMs).unref();
  }

  /** Where most of what there should be is missing, and there is room for another. */
  #neediest(): Shelf | undefined {
    const { pressure, budgetBytes } = this.#o;
    if (!this.#isOpen || pressure.isRising()) return undefined;
    const nowMs = performance.now();
    if (nowMs < this.#replenishFromMs) return undefined;
    let neediest: Shelf | undefined;
    let most = 0;
    for (const shelf of this.#shelves.values()) {
      const missing = 1 - shelf.ready.length / this.#target(shelf);
      if (shelf.restsUntilMs > nowMs || !(missing > most)) continue;
      if (this.#spentBytes() + shelf.costBytes > budgetBytes) continue;
      neediest = shelf;
      most = missing;
    }
    return neediest;
  }

  async #make(id: string, shelf: Shelf): Promise<void> {
    const { standbys, onFailure } = this.#o;
    try {
      const standby = await standbys.make(id, shelf);
      shelf.costBytes = standby.costBytes;
      shelf.failures = 0;
      if (!this.#isOpen || this.#shelves.get(shelf.key) !== shelf) return await this.#end(standby);
      shelf.ready.push(standby);
      void standby.ended.then(() => this.#lose(shelf, standby));
    } catch (error) {
      shelf.restsUntilMs = performance.now() + Math.min(firstRetryMs * 2 ** shelf.failures++, lastRetryMs);
      onFailure(error);
    }
  }

  /** It ended by itself. Of a reserved one its claimer finds out. */
  #lose(shelf: Shelf, standby: Standby): void {
    const at = shelf.ready.indexOf(standby);
    if (at === -1) return;
    shelf.ready.splice(at, 1);
    this.#o.onFailure(new Error(`the VM of capsule ${standby.id}, made ahead of time, has ended`));
    void this.#end(standby);
  }

  async #drain(): Promise<void> {
    const all = [...this.#shelves.values()].flatMap((shelf) => shelf.ready.splice(0));
    const reserved = this.#isOpen ? [] : [...this.#reserved.values()];
    await Promise.all([...all, ...reserved].map((standby) => this.#end(standby)));
  }

  /** A folder that cannot be removed now has no record, and is found by whoever looks for those. */
  async #end(standby: Standby): Promise<void> {
    this.#reserved.delete(standby.id);
    this.#ending.add(standby.id);
    await this.#o.standbys.end(standby).catch(this.#o.onFailure);
    this.#ending.delete(standby.id);
  }

  #shelf(kind: Kind): Shelf {
    const key = keyOf(kind);
    let shelf = this.#shelves.get(key);
    if (shelf === undefined) {
      if (this.#shelves.size >= mostShelves) this.#forgetOne();
      const fresh = { ready: [], costBytes: usualBytes, failures: 0, restsUntilMs: 0 };
      shelf = { key, ...kind, demand: new Demand(), ...fresh };
      this.#shelves.set(key, shelf);
    }
    return shelf;
  }

  /** The kind that was asked for least recently. */
  #forgetOne(): void {
    const [first, ...others] = [...this.#shelves.values()].filter(({ key }) => key !== this.#stapleKey);
    let oldest = first as Shelf;
    for (const shelf of others) if (shelf.demand.lastMs < oldest.demand.lastMs) oldest = shelf;
    this.#shelves.delete(oldest.key);
    for (const standby of oldest.ready.splice(0)) void this.#end(standby);
  }

  #target(shelf: Shelf): number {
    return Math.max(shelf.key === this.#stapleKey ? 1 : 0, shelf.demand.target(performance.now()));
  }

  #spentBytes(): number {
    let bytes = 0;
    for (const shelf of this.#shelves.values()) bytes += shelf.ready.length * shelf.costBytes;
    return bytes;
  }

  #shelved(): Standby[] {
    return [...this.#shelves.values()].flatMap((shelf) => shelf.ready);
  }
}

function keyOf({ origin, shape }: Kind): string {
  const from = origin.kind === "base" ? `base ${origin.name}` : `template ${origin.storage}`;
  return `${from} ${shape.vcpus}x${shape.memoryMb}`;
}
