/**
 * Things made before anybody asks for them: as many of each kind as were asked for lately, and of one kind some in any case,
 * within a bound on their number and their memory.
 *
 *   making ──► ready ──take──► the taker's
 *                └─ surplus, pressure, dropped, shutdown: ended
 *
 * Making goes on in the background, one at a time, and rests as long as it worked unless a kind has run out.
 */

import type { Pressure } from "../capacity/pressure.ts";
import { Demand } from "./demand.ts";

export interface Stocked {
  /** Memory that it takes from the host. */
  costBytes: number;
  /** Resolves when it has ended by itself. Never rejects. */
  ended: Promise<unknown>;
}

export interface StockOptions<Kind, Item extends Stocked> {
  /** The same for kinds of which each is as good as the other. */
  keyOf: (kind: Kind) => string;
  /** On failure nothing is left of it. Whoever is told that it is unwanted fails soon. */
  make: (kind: Kind, unwanted: AbortSignal) => Promise<Item>;
  end: (item: Item) => Promise<void>;
  pressure: Pressure;
  /** Most memory of all that are ready together; 0: none is made. */
  budgetBytes: number;
  /** Most that are ready together. */
  most: number;
  /** Of this there are always so many, as far as half of the budget goes, but one at least. */
  staple?: { kind: Kind; least: number } | undefined;
  /** What one is taken to cost before one was made. */
  usualBytes: number;
  /** Told of what could not be made, and is tried again later. */
  onFailure: (error: unknown) => void;
  /** What to say of one that has ended by itself. */
  nameOf: (item: Item) => string;
}

/** All of one kind. */
interface Shelf<Kind, Item> {
  key: string;
  kind: Kind;
  demand: Demand;
  ready: Item[];
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
const firstRetryMs = 1_000;
const lastRetryMs = 300_000;

export class Stock<Kind, Item extends Stocked> {
  readonly #o: StockOptions<Kind, Item>;
  readonly #shelves = new Map<string, Shelf<Kind, Item>>();
  readonly #stapleKey: string | undefined;
  #making: { shelf: Shelf<Kind, Item>; done: Promise<void>; unwanted: AbortController } | undefined;
  #timer: NodeJS.Timeout | undefined;
  #served: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  #isOpen = false;
  #replenishFromMs = 0;

  constructor(options: StockOptions<Kind, Item>) {
    this.#o = options;
    this.#stapleKey = options.staple === undefined ? undefined : options.keyOf(options.staple.kind);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Begins to make. */
  open(): void {
    const { budgetBytes, most, staple } = this.#o;
    if (budgetBytes === 0 || most === 0 || this.#isOpen) return;
    this.#isOpen = true;
    if (staple !== undefined) this.#shelf(staple.kind);
    this.#timer = setInterval(() => this.#look(), lookMs).unref();
    this.#look();
  }

  /** One that is ready, from now on the caller's. Undefined when there is none. Whoever asks counts as wanting one. */
  take(kind: Kind): Item | undefined {
    if (!this.#isOpen) return undefined;
    const shelf = this.#shelf(kind);
    shelf.demand.note(performance.now());
    const item = shelf.ready.shift();
    this.#replenishFromMs = performance.now() + graceMs;
    this.#lookWhenServed(graceMs);
    return item;
  }

  /** All that are ready. */
  items(): Item[] {
    return [...this.#shelves.values()].flatMap((shelf) => shelf.ready);
  }

  state(): { ready: number; target: number } {
    if (!this.#isOpen) return { ready: 0, target: 0 };
    let target = 0;
    for (const shelf of this.#shelves.values()) target += this.#target(shelf);
    return { ready: this.items().length, target: Math.min(target, this.#o.most) };
  }

  /** Ends all of these kinds; resolves when nothing of them is left. */
  async drop(isOfThem: (kind: Kind) => boolean): Promise<void> {
    for (const [key, shelf] of this.#shelves) {
      if (!isOfThem(shelf.kind)) continue;
      this.#shelves.delete(key);
      if (this.#making?.shelf === shelf) {
        this.#making.unwanted.abort();
        await this.#making.done;
      }
      await Promise.all(shelf.ready.splice(0).map((item) => this.#end(item)));
    }
  }

  /** Ends them all. */
  async close(): Promise<void> {
    this.#isOpen = false;
    clearInterval(this.#timer);
    this.#making?.unwanted.abort();
    await this.#filling;
    await this.#drain();
  }

  /** Resolves when as many are ready as should be, or as can be now. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined) await this.#filling;
  }

  /** One look, however many were taken one soon after the other. */
  #lookWhenServed(inMs: number): void {
    this.#served ??= setTimeout(() => {
      this.#served = undefined;
      const leftMs = this.#replenishFromMs - performance.now();
      if (leftMs > 0) this.#lookWhenServed(leftMs);
      else this.#look();
    }, inMs + timerErrorMs).unref();
  }

  #look(): void {
    if (!this.#isOpen) return;
    if (this.#o.pressure.isHigh()) void this.#drain();
    for (const shelf of this.#shelves.values()) {
      if (shelf.ready.length > this.#target(shelf)) void this.#end(shelf.ready.shift() as Item);
    }
    this.#filling ??= this.#fill().finally(() => {
      this.#filling = undefined;
    });
  }

  async #fill(): Promise<void> {
    for (let shelf = this.#neediest(); shelf !== undefined; shelf = this.#neediest()) {
      const beganMs = performance.now();
      const unwanted = new AbortController();
      const done = this.#make(shelf, unwanted.signal);
      this.#making = { shelf, done, unwanted };
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
  #neediest(): Shelf<Kind, Item> | undefined {
    const nowMs = performance.now();
    if (!this.#isOpen || nowMs < this.#replenishFromMs || this.#o.pressure.isRising()) return undefined;
    const wanting = [...this.#shelves.values()]
      .map((shelf) => ({ shelf, missing: 1 - shelf.ready.length / this.#target(shelf) }))
      .filter(({ shelf, missing }) => missing > 0 && shelf.restsUntilMs <= nowMs)
      .sort((a, b) => b.missing - a.missing)
      .map(({ shelf }) => shelf);
    return wanting.find((shelf) => this.#hasRoom(shelf)) ?? wanting.find((shelf) => this.#makeRoom(shelf));
  }

  #hasRoom(shelf: Shelf<Kind, Item>): boolean {
    const { budgetBytes, most } = this.#o;
    return this.items().length < most && this.#spentBytes() + shelf.costBytes <= budgetBytes;
  }

  /** The first of a kind is worth more than the second of another. */
  #makeRoom(shelf: Shelf<Kind, Item>): boolean {
    if (shelf.ready.length > 0 || shelf.failures > 0) return false;
    const richest = [...this.#shelves.values()].reduce((a, b) => (b.ready.length > a.ready.length ? b : a));
    if (richest.ready.length < 2) return false;
    void this.#end(richest.ready.shift() as Item);
    return this.#hasRoom(shelf);
  }

  async #make(shelf: Shelf<Kind, Item>, unwanted: AbortSignal): Promise<void> {
    const { make, onFailure } = this.#o;
    try {
      const item = await make(shelf.kind, unwanted);
      shelf.costBytes = item.costBytes;
      shelf.failures = 0;
      if (!this.#isOpen || this.#shelves.get(shelf.key) !== shelf) return await this.#end(item);
      shelf.ready.push(item);
      void item.ended.then(() => this.#lose(shelf, item));
    } catch (error) {
      if (unwanted.aborted) return;
      shelf.restsUntilMs = performance.now() + Math.min(firstRetryMs * 2 ** shelf.failures++, lastRetryMs);
      onFailure(error);
    }
  }

  /** It ended by itself. Of one that was taken its taker finds out. */
  #lose(shelf: Shelf<Kind, Item>, item: Item): void {
    const at = shelf.ready.indexOf(item);
    if (at === -1) return;
    shelf.ready.splice(at, 1);
    this.#o.onFailure(new Error(`${this.#o.nameOf(item)}, made ahead of time, has ended`));
    void this.#end(item);
  }

  async #drain(): Promise<void> {
    const all = [...this.#shelves.values()].flatMap((shelf) => shelf.ready.splice(0));
    await Promise.all(all.map((item) => this.#end(item)));
  }

  async #end(item: Item): Promise<void> {
    await this.#o.end(item).catch(this.#o.onFailure);
  }

  #shelf(kind: Kind): Shelf<Kind, Item> {
    const key = this.#o.keyOf(kind);
    let shelf = this.#shelves.get(key);
    if (shelf === undefined) {
      if (this.#shelves.size >= mostShelves) this.#forgetOne();
      const fresh = { ready: [], costBytes: this.#o.usualBytes, failures: 0, restsUntilMs: 0 };
      shelf = { key, kind, demand: new Demand(), ...fresh };
      this.#shelves.set(key, shelf);
    }
    return shelf;
  }

  /** The kind that was asked for least recently. */
  #forgetOne(): void {
    const [first, ...others] = [...this.#shelves.values()].filter(({ key }) => key !== this.#stapleKey);
    let oldest = first as Shelf<Kind, Item>;
    for (const shelf of others) if (shelf.demand.lastMs < oldest.demand.lastMs) oldest = shelf;
    this.#shelves.delete(oldest.key);
    for (const item of oldest.ready.splice(0)) void this.#end(item);
  }

  #target(shelf: Shelf<Kind, Item>): number {
    return Math.max(this.#least(shelf), shelf.demand.target(performance.now()));
  }

  /** However few were asked for. What others ask for has the rest of the budget. */
  #least({ key, costBytes }: Shelf<Kind, Item>): number {
    const { staple, budgetBytes } = this.#o;
    if (staple === undefined || key !== this.#stapleKey) return 0;
    return Math.min(staple.least, Math.max(1, Math.floor(budgetBytes / 2 / costBytes)));
  }

  #spentBytes(): number {
    let bytes = 0;
    for (const shelf of this.#shelves.values()) bytes += shelf.ready.length * shelf.costBytes;
    return bytes;
  }
}
