/**
 * A pool of items made ahead of time. For each key (a bucket) as many are kept as were claimed lately, for one key at least a
 * minimum, within limits of number and memory.
 *
 *   making ──► ready ──claim──► the caller's
 *                └─ surplus, memory pressure, dropped, shutdown: ended
 *
 * Items are made in the background, one at a time. pool-policy.ts decides how many and when.
 */

import type { Pressure } from "../capacity/memory.ts";
import type { PoolState } from "../host.ts";
import { DemandEstimator, refillAtMs, refillDelayMs } from "./pool-policy.ts";

export interface PoolItem {
  /** Memory that it takes from the host. */
  costBytes: number;
  /** Resolves when it has ended by itself. Never rejects. */
  ended: Promise<unknown>;
}

export interface DemandPoolOptions<Key, Item extends PoolItem> {
  /** The same string for keys whose items are interchangeable. */
  nameOf: (key: Key) => string;
  /** On failure nothing is left of the item. Fails soon after `signal` fires. */
  make: (key: Key, signal: AbortSignal) => Promise<Item>;
  end: (item: Item) => Promise<void>;
  pressure: Pressure;
  /** Limit of the memory of all ready items; 0: none is made. */
  budgetBytes: number;
  /** Limit of the number of ready items. */
  maxCount: number;
  /** Kept regardless of claims, as far as half of the budget goes, but at least one. */
  minimum?: { key: Key; size: number } | undefined;
  /** Cost of an item before one was made. */
  expectedBytes: number;
  /** Called when an item could not be made, which is retried later, or has ended while it was ready. */
  onFailure: (error: unknown) => void;
  /** For the error when an item has ended by itself. */
  describe: (item: Item) => string;
}

/** The items of one key. */
interface Bucket<Key, Item> {
  name: string;
  key: Key;
  demand: DemandEstimator;
  ready: Item[];
  /** The cost of the last item. */
  costBytes: number;
  failures: number;
  failedMs: number;
}

/** Targets fall with time, and memory pressure changes, without any call. */
const pollMs = 1_000;
const maxBuckets = 32;
const never = Number.NEGATIVE_INFINITY;

export class DemandPool<Key, Item extends PoolItem> {
  readonly #options: DemandPoolOptions<Key, Item>;
  readonly #buckets = new Map<string, Bucket<Key, Item>>();
  readonly #minimumName: string | undefined;
  #current: { bucket: Bucket<Key, Item>; done: Promise<void>; abort: AbortController } | undefined;
  #filling: Promise<void> | undefined;
  #timer: { atMs: number; timeout: NodeJS.Timeout } | undefined;
  #isOpen = false;
  #claimedMs = never;
  #making = { beganMs: 0, endedMs: 0 };

  constructor(options: DemandPoolOptions<Key, Item>) {
    this.#options = options;
    this.#minimumName = options.minimum === undefined ? undefined : options.nameOf(options.minimum.key);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Begins to make items. */
  open(): void {
    const { budgetBytes, maxCount, minimum } = this.#options;
    if (budgetBytes === 0 || maxCount === 0 || this.#isOpen) return;
    this.#isOpen = true;
    if (minimum !== undefined) this.#bucket(minimum.key);
    this.#poll();
  }

  /** A ready item, from now on the caller's. Undefined when there is none. Counts as demand in both cases. */
  claim(key: Key): Item | undefined {
    if (!this.#isOpen) return undefined;
    const bucket = this.#bucket(key);
    this.#claimedMs = performance.now();
    bucket.demand.record(this.#claimedMs);
    this.#pollBy(this.#claimedMs + refillDelayMs);
    return bucket.ready.shift();
  }

  /** All ready items. */
  items(): Item[] {
    return [...this.#buckets.values()].flatMap((bucket) => bucket.ready);
  }

  state(): PoolState {
    if (!this.#isOpen) return { ready: 0, target: 0 };
    let target = 0;
    for (const bucket of this.#buckets.values()) target += this.#target(bucket);
    return { ready: this.items().length, target: Math.min(target, this.#options.maxCount) };
  }

  /** Ends all items of the matching keys, also the one being made; resolves when nothing of them is left. */
  async drop(matches: (key: Key) => boolean): Promise<void> {
    for (const [name, bucket] of this.#buckets) {
      if (!matches(bucket.key)) continue;
      this.#buckets.delete(name);
      if (this.#current?.bucket === bucket) {
        this.#current.abort.abort();
        await this.#current.done;
      }
      await Promise.all(bucket.ready.splice(0).map((item) => this.#end(item)));
    }
  }

  /** Ends the ready items of the matching keys, and the one being made, so that they are made anew. */
  async renew(matches: (key: Key) => boolean): Promise<void> {
    const buckets = [...this.#buckets.values()].filter(({ key }) => matches(key));
    if (this.#current !== undefined && buckets.includes(this.#current.bucket)) this.#current.abort.abort();
    await Promise.all(buckets.flatMap(({ ready }) => ready.splice(0)).map((item) => this.#end(item)));
    this.#poll();
  }

  /** Ends all items. */
  async close(): Promise<void> {
    this.#isOpen = false;
    clearTimeout(this.#timer?.timeout);
    this.#current?.abort.abort();
    await this.#filling;
    await this.#drain();
  }

  /** Resolves when as many are ready as should be, or as can be made now. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined) await this.#filling;
  }

  /** Ends surplus items, then makes missing ones until none may be made. */
  #poll(): void {
    if (!this.#isOpen) return;
    this.#pollBy(performance.now() + pollMs);
    if (this.#options.pressure.isHigh()) void this.#drain();
    for (const bucket of this.#buckets.values()) {
      if (bucket.ready.length > this.#target(bucket)) void this.#end(bucket.ready.shift() as Item);
    }
    this.#filling ??= this.#fill().finally(() => {
      this.#filling = undefined;
    });
  }

  /** Polls at this time at the latest. */
  #pollBy(atMs: number): void {
    if (!this.#isOpen || (this.#timer !== undefined && this.#timer.atMs <= atMs)) return;
    clearTimeout(this.#timer?.timeout);
    const timeout = setTimeout(
      () => {
        this.#timer = undefined;
        this.#poll();
      },
      Math.max(0, atMs - performance.now()),
    ).unref();
    this.#timer = { atMs, timeout };
  }

  async #fill(): Promise<void> {
    for (let bucket = this.#next(); bucket !== undefined; bucket = this.#next()) {
      const beganMs = performance.now();
      const abort = new AbortController();
      const done = this.#make(bucket, abort.signal);
      this.#current = { bucket, done, abort };
      await done;
      this.#current = undefined;
      this.#making = { beganMs, endedMs: performance.now() };
    }
    const nowMs = performance.now();
    for (const bucket of this.#buckets.values()) {
      const atMs = this.#refillAtMs(bucket);
      if (bucket.ready.length < this.#target(bucket) && atMs > nowMs) this.#pollBy(atMs);
    }
  }

  /** The bucket with the smallest share of its target ready, for which an item may be made now. */
  #next(): Bucket<Key, Item> | undefined {
    if (!this.#isOpen || this.#options.pressure.isRising()) return undefined;
    const nowMs = performance.now();
    const short = [...this.#buckets.values()]
      .map((bucket) => ({ bucket, missing: 1 - bucket.ready.length / this.#target(bucket) }))
      .filter(({ bucket, missing }) => missing > 0 && this.#refillAtMs(bucket) <= nowMs)
      .sort((a, b) => b.missing - a.missing)
      .map(({ bucket }) => bucket);
    return short.find((bucket) => this.#hasRoom(bucket)) ?? short.find((bucket) => this.#makeRoom(bucket));
  }

  #refillAtMs({ failures, failedMs, ready }: Bucket<Key, Item>): number {
    const [claimedMs, making] = [this.#claimedMs, this.#making];
    return refillAtMs({ claimedMs, making, failures, failedMs, isEmpty: ready.length === 0 });
  }

  #hasRoom(bucket: Bucket<Key, Item>): boolean {
    const { budgetBytes, maxCount } = this.#options;
    return this.items().length < maxCount && this.#spentBytes() + bucket.costBytes <= budgetBytes;
  }

  /** For the first item of a bucket, ends an item of the largest bucket that has more than one. */
  #makeRoom(bucket: Bucket<Key, Item>): boolean {
    if (bucket.ready.length > 0 || bucket.failures > 0) return false;
    const largest = [...this.#buckets.values()].reduce((a, b) => (b.ready.length > a.ready.length ? b : a));
    if (largest.ready.length < 2) return false;
    void this.#end(largest.ready.shift() as Item);
    return this.#hasRoom(bucket);
  }

  async #make(bucket: Bucket<Key, Item>, signal: AbortSignal): Promise<void> {
    const { make, onFailure } = this.#options;
    try {
      const item = await make(bucket.key, signal);
      bucket.costBytes = item.costBytes;
      bucket.failures = 0;
      if (!this.#isOpen || this.#buckets.get(bucket.name) !== bucket) return await this.#end(item);
      bucket.ready.push(item);
      void item.ended.then(() => this.#removeEnded(bucket, item));
    } catch (error) {
      if (signal.aborted) return;
      bucket.failures++;
      bucket.failedMs = performance.now();
      onFailure(error);
    }
  }

  /** The end of an item that was claimed is its claimer's to notice. */
  #removeEnded(bucket: Bucket<Key, Item>, item: Item): void {
    const at = bucket.ready.indexOf(item);
    if (at === -1) return;
    bucket.ready.splice(at, 1);
    this.#options.onFailure(new Error(`${this.#options.describe(item)}, made ahead of time, has ended`));
    void this.#end(item);
  }

  async #drain(): Promise<void> {
    const all = [...this.#buckets.values()].flatMap((bucket) => bucket.ready.splice(0));
    await Promise.all(all.map((item) => this.#end(item)));
  }

  async #end(item: Item): Promise<void> {
    await this.#options.end(item).catch(this.#options.onFailure);
  }

  #bucket(key: Key): Bucket<Key, Item> {
    const name = this.#options.nameOf(key);
    let bucket = this.#buckets.get(name);
    if (bucket === undefined) {
      if (this.#buckets.size >= maxBuckets) this.#evictBucket();
      const empty = { ready: [], costBytes: this.#options.expectedBytes, failures: 0, failedMs: never };
      bucket = { name, key, demand: new DemandEstimator(), ...empty };
      this.#buckets.set(name, bucket);
    }
    return bucket;
  }

  /** Ends the least recently claimed bucket, never that of the minimum. */
  #evictBucket(): void {
    const [first, ...others] = [...this.#buckets.values()].filter(({ name }) => name !== this.#minimumName);
    let oldest = first as Bucket<Key, Item>;
    for (const bucket of others) if (bucket.demand.lastMs < oldest.demand.lastMs) oldest = bucket;
    this.#buckets.delete(oldest.name);
    for (const item of oldest.ready.splice(0)) void this.#end(item);
  }

  #target(bucket: Bucket<Key, Item>): number {
    return Math.max(this.#minimum(bucket), bucket.demand.targetSize(performance.now()));
  }

  #minimum({ name, costBytes }: Bucket<Key, Item>): number {
    const { minimum, budgetBytes } = this.#options;
    if (minimum === undefined || name !== this.#minimumName) return 0;
    return Math.min(minimum.size, Math.max(1, Math.floor(budgetBytes / 2 / costBytes)));
  }

  #spentBytes(): number {
    let bytes = 0;
    for (const bucket of this.#buckets.values()) bytes += bucket.ready.length * bucket.costBytes;
    return bytes;
  }
}
