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
import { DemandEstimator } from "./demand.ts";

export interface PoolItem {
  /** Memory that it takes from the host. */
  costBytes: number;
  /** Resolves when it has ended by itself. Never rejects. */
  ended: Promise<unknown>;
}

export interface DemandPoolOptions<Kind, Item extends PoolItem> {
  /** The same for kinds of which each is as good as the other. */
  keyOf: (kind: Kind) => string;
  /** On failure nothing is left of it. Whoever is told that it is unwanted fails soon. */
  make: (kind: Kind, signal: AbortSignal) => Promise<Item>;
  end: (item: Item) => Promise<void>;
  pressure: Pressure;
  /** Most memory of all that are ready together; 0: none is made. */
  budgetBytes: number;
  /** Most that are ready together. */
  maxCount: number;
  /** Of this there are always so many, as far as half of the budget goes, but one at least. */
  minimum?: { key: Kind; size: number } | undefined;
  /** What one is taken to cost before one was made. */
  expectedBytes: number;
  /** Told of what could not be made, and is tried again later. */
  onFailure: (error: unknown) => void;
  /** What to say of one that has ended by itself. */
  nameOf: (item: Item) => string;
}

/** All of one kind. */
interface Bucket<Kind, Item> {
  key: string;
  kind: Kind;
  demand: DemandEstimator;
  ready: Item[];
  /** What the last one took. */
  costBytes: number;
  failures: number;
  /** Not tried again before. */
  retryAtMs: number;
}

const pollMs = 1_000;
/** Whoever was given one is served before it is replaced. */
const refillDelayMs = 100;
/** Node's timers count from the beginning of a turn of its loop, and so can come early. */
const timerErrorMs = 20;
const maxBuckets = 32;
const firstRetryMs = 1_000;
const lastRetryMs = 300_000;

export class DemandPool<Kind, Item extends PoolItem> {
  readonly #options: DemandPoolOptions<Kind, Item>;
  readonly #buckets = new Map<string, Bucket<Kind, Item>>();
  readonly #minimumKey: string | undefined;
  #making: { bucket: Bucket<Kind, Item>; done: Promise<void>; abort: AbortController } | undefined;
  #timer: NodeJS.Timeout | undefined;
  #served: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  #isOpen = false;
  #replenishFromMs = 0;

  constructor(options: DemandPoolOptions<Kind, Item>) {
    this.#options = options;
    this.#minimumKey = options.minimum === undefined ? undefined : options.keyOf(options.minimum.key);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Begins to make. */
  open(): void {
    const { budgetBytes, maxCount: most, minimum } = this.#options;
    if (budgetBytes === 0 || most === 0 || this.#isOpen) return;
    this.#isOpen = true;
    if (minimum !== undefined) this.#bucket(minimum.key);
    this.#timer = setInterval(() => this.#poll(), pollMs).unref();
    this.#poll();
  }

  /** One that is ready, from now on the caller's. Undefined when there is none. Whoever asks counts as wanting one. */
  claim(kind: Kind): Item | undefined {
    if (!this.#isOpen) return undefined;
    const bucket = this.#bucket(kind);
    bucket.demand.record(performance.now());
    const item = bucket.ready.shift();
    this.#replenishFromMs = performance.now() + refillDelayMs;
    this.#pollAfterClaims(refillDelayMs);
    return item;
  }

  /** All that are ready. */
  items(): Item[] {
    return [...this.#buckets.values()].flatMap((bucket) => bucket.ready);
  }

  state(): { ready: number; target: number } {
    if (!this.#isOpen) return { ready: 0, target: 0 };
    let target = 0;
    for (const bucket of this.#buckets.values()) target += this.#target(bucket);
    return { ready: this.items().length, target: Math.min(target, this.#options.maxCount) };
  }

  /** Ends all of these kinds; resolves when nothing of them is left. */
  async drop(isOfThem: (kind: Kind) => boolean): Promise<void> {
    for (const [key, bucket] of this.#buckets) {
      if (!isOfThem(bucket.kind)) continue;
      this.#buckets.delete(key);
      if (this.#making?.bucket === bucket) {
        this.#making.abort.abort();
        await this.#making.done;
      }
      await Promise.all(bucket.ready.splice(0).map((item) => this.#end(item)));
    }
  }

  /** Ends them all. */
  async close(): Promise<void> {
    this.#isOpen = false;
    clearInterval(this.#timer);
    this.#making?.abort.abort();
    await this.#filling;
    await this.#drain();
  }

  /** Resolves when as many are ready as should be, or as can be now. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined) await this.#filling;
  }

  /** One look, however many were taken one soon after the other. */
  #pollAfterClaims(inMs: number): void {
    this.#served ??= setTimeout(() => {
      this.#served = undefined;
      const leftMs = this.#replenishFromMs - performance.now();
      if (leftMs > 0) this.#pollAfterClaims(leftMs);
      else this.#poll();
    }, inMs + timerErrorMs).unref();
  }

  #poll(): void {
    if (!this.#isOpen) return;
    if (this.#options.pressure.isHigh()) void this.#drain();
    for (const bucket of this.#buckets.values()) {
      if (bucket.ready.length > this.#target(bucket)) void this.#end(bucket.ready.shift() as Item);
    }
    this.#filling ??= this.#fill().finally(() => {
      this.#filling = undefined;
    });
  }

  async #fill(): Promise<void> {
    for (let bucket = this.#neediest(); bucket !== undefined; bucket = this.#neediest()) {
      const beganMs = performance.now();
      const abort = new AbortController();
      const done = this.#make(bucket, abort.signal);
      this.#making = { bucket, done, abort };
      await done;
      this.#making = undefined;
      const isOut = [...this.#buckets.values()].some((each) => each.ready.length === 0 && this.#target(each) > 0);
      if (!isOut) return this.#pause(performance.now() - beganMs);
    }
  }

  /** The look after the rest goes on. */
  #pause(ms: number): void {
    for (const bucket of this.#buckets.values()) {
      bucket.retryAtMs = Math.max(bucket.retryAtMs, performance.now() + ms);
    }
    setTimeout(() => this.#poll(), ms + timerErrorMs).unref();
  }

  /** Where most of what there should be is missing, and there is room for another. */
  #neediest(): Bucket<Kind, Item> | undefined {
    const nowMs = performance.now();
    if (!this.#isOpen || nowMs < this.#replenishFromMs || this.#options.pressure.isRising()) return undefined;
    const wanting = [...this.#buckets.values()]
      .map((bucket) => ({ bucket, missing: 1 - bucket.ready.length / this.#target(bucket) }))
      .filter(({ bucket, missing }) => missing > 0 && bucket.retryAtMs <= nowMs)
      .sort((a, b) => b.missing - a.missing)
      .map(({ bucket }) => bucket);
    return wanting.find((bucket) => this.#hasRoom(bucket)) ?? wanting.find((bucket) => this.#makeRoom(bucket));
  }

  #hasRoom(bucket: Bucket<Kind, Item>): boolean {
    const { budgetBytes, maxCount: most } = this.#options;
    return this.items().length < most && this.#spentBytes() + bucket.costBytes <= budgetBytes;
  }

  /** The first of a kind is worth more than the second of another. */
  #makeRoom(bucket: Bucket<Kind, Item>): boolean {
    if (bucket.ready.length > 0 || bucket.failures > 0) return false;
    const richest = [...this.#buckets.values()].reduce((a, b) => (b.ready.length > a.ready.length ? b : a));
    if (richest.ready.length < 2) return false;
    void this.#end(richest.ready.shift() as Item);
    return this.#hasRoom(bucket);
  }

  async #make(bucket: Bucket<Kind, Item>, signal: AbortSignal): Promise<void> {
    const { make, onFailure } = this.#options;
    try {
      const item = await make(bucket.kind, signal);
      bucket.costBytes = item.costBytes;
      bucket.failures = 0;
      if (!this.#isOpen || this.#buckets.get(bucket.key) !== bucket) return await this.#end(item);
      bucket.ready.push(item);
      void item.ended.then(() => this.#removeEnded(bucket, item));
    } catch (error) {
      if (signal.aborted) return;
      bucket.retryAtMs = performance.now() + Math.min(firstRetryMs * 2 ** bucket.failures++, lastRetryMs);
      onFailure(error);
    }
  }

  /** It ended by itself. Of one that was taken its taker finds out. */
  #removeEnded(bucket: Bucket<Kind, Item>, item: Item): void {
    const at = bucket.ready.indexOf(item);
    if (at === -1) return;
    bucket.ready.splice(at, 1);
    this.#options.onFailure(new Error(`${this.#options.nameOf(item)}, made ahead of time, has ended`));
    void this.#end(item);
  }

  async #drain(): Promise<void> {
    const all = [...this.#buckets.values()].flatMap((bucket) => bucket.ready.splice(0));
    await Promise.all(all.map((item) => this.#end(item)));
  }

  async #end(item: Item): Promise<void> {
    await this.#options.end(item).catch(this.#options.onFailure);
  }

  #bucket(kind: Kind): Bucket<Kind, Item> {
    const key = this.#options.keyOf(kind);
    let bucket = this.#buckets.get(key);
    if (bucket === undefined) {
      if (this.#buckets.size >= maxBuckets) this.#evictBucket();
      const fresh = { ready: [], costBytes: this.#options.expectedBytes, failures: 0, retryAtMs: 0 };
      bucket = { key, kind, demand: new DemandEstimator(), ...fresh };
      this.#buckets.set(key, bucket);
    }
    return bucket;
  }

  /** The kind that was asked for least recently. */
  #evictBucket(): void {
    const [first, ...others] = [...this.#buckets.values()].filter(({ key }) => key !== this.#minimumKey);
    let oldest = first as Bucket<Kind, Item>;
    for (const bucket of others) if (bucket.demand.lastMs < oldest.demand.lastMs) oldest = bucket;
    this.#buckets.delete(oldest.key);
    for (const item of oldest.ready.splice(0)) void this.#end(item);
  }

  #target(bucket: Bucket<Kind, Item>): number {
    return Math.max(this.#minimum(bucket), bucket.demand.targetSize(performance.now()));
  }

  /** However few were asked for. What others ask for has the rest of the budget. */
  #minimum({ key, costBytes }: Bucket<Kind, Item>): number {
    const { minimum, budgetBytes } = this.#options;
    if (minimum === undefined || key !== this.#minimumKey) return 0;
    return Math.min(minimum.size, Math.max(1, Math.floor(budgetBytes / 2 / costBytes)));
  }

  #spentBytes(): number {
    let bytes = 0;
    for (const bucket of this.#buckets.values()) bytes += bucket.ready.length * bucket.costBytes;
    return bytes;
  }
}
