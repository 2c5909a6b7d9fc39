/** What the pool keeps ready, and what becomes of it; the capsules are names. */
import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { describe, it } from "node:test";
import { MemoryPressure, shareAvailable } from "../capacity/pressure.ts";
import type { LiveGuest } from "../guest.ts";
import type { WarmCapsule, WarmKey } from "./warm-capsules.ts";
import { WarmPool, type WarmPoolOptions } from "./warm-pool.ts";

const minimal: WarmKey = { origin: { kind: "base", name: "minimal" }, shape: { vcpus: 1, memoryMb: 512 } };
const template = (storage: string): WarmKey => ({ ...minimal, origin: { kind: "template", storage } });
const mib = 2 ** 20;

/** Standbys that are made and ended at once, unless a test holds them up. */
class Workshop {
  readonly events = new EventEmitter();
  readonly here = new Map<string, WarmKey>();
  readonly failures: unknown[] = [];
  readonly ends = new Map<string, () => void>();
  made = 0;
  pressure: "none" | "rising" | "high" = "none";
  /** Asked before one is made. */
  before: (kind: WarmKey) => Promise<void> = async () => {};
  readonly pool: WarmPool;

  constructor(options: Partial<WarmPoolOptions> = {}) {
    let ids = 0;
    this.pool = new WarmPool({
      capsules: { make: (id, kind) => this.#make(id, kind), end: (warm) => this.#end(warm) },
      pressure: { isRising: () => this.pressure !== "none", isHigh: () => this.pressure === "high" },
      newId: () => `cl-${++ids}`,
      budgetBytes: 1_000 * mib,
      minimum: { key: minimal, size: 1 },
      onFailure: (error) => this.failures.push(error),
      ...options,
    });
  }

  /** Resolves when this many have been made since the beginning. */
  async hasMade(count: number): Promise<void> {
    while (this.made < count) await once(this.events, "made");
    await new Promise(setImmediate);
  }

  /** Resolves when this many exist. */
  async has(count: number): Promise<void> {
    while (this.here.size !== count) await once(this.events, "ended");
  }

  async #make(id: string, kind: WarmKey): Promise<WarmCapsule> {
    await this.before(kind);
    this.here.set(id, kind);
    this.made++;
    this.events.emit("made");
    const { promise, resolve } = Promise.withResolvers<void>();
    this.ends.set(id, resolve);
    return { id, guest: {} as LiveGuest, source: `/source of ${id}`, costBytes: 40 * mib, ended: promise };
  }

  async #end({ id }: WarmCapsule): Promise<void> {
    this.here.delete(id);
    this.events.emit("ended");
  }
}

describe("the pool", () => {
  it("keeps one of the minimum ready from the beginning, hands it out once, and makes another", async () => {
    const shop = new Workshop();
    assert.equal(shop.pool.reserve(minimal), undefined, "it is not open yet");
    shop.pool.open();
    await shop.hasMade(1);
    assert.deepEqual(shop.pool.state(), { ready: 1, target: 1 });
    assert.ok(shop.pool.holds("cl-1"));
    assert.deepEqual(shop.pool.sources(), ["/source of cl-1"]);
    assert.equal(shop.pool.reserve(minimal), "cl-1");
    assert.ok(!shop.pool.holds("cl-1"), "a reserved one is its claimer's");
    assert.equal(shop.pool.reserve(minimal), undefined);
    assert.equal(shop.pool.reserved, 1);
    assert.equal(shop.pool.claim("cl-1")?.id, "cl-1");
    assert.equal(shop.pool.reserved, 0);
    assert.equal(shop.pool.claim("cl-1"), undefined);
    await shop.hasMade(3); // two were asked for within one refill
    assert.deepEqual(shop.pool.state(), { ready: 2, target: 2 });
    await shop.pool.close();
    assert.deepEqual([...shop.here.keys()], ["cl-1"], "what was claimed is not the pool's to end");
  });

  it("keeps as many of the minimum as it is told, in half of its memory, and none if it is told so", async () => {
    for (const [least, budgetBytes, kept] of [
      [3, 1_000 * mib, 3],
      [3, 170 * mib, 2],
      [3, 70 * mib, 1],
      [0, 1_000 * mib, 0],
    ] as const) {
      const shop = new Workshop({ minimum: { key: minimal, size: least }, budgetBytes });
      shop.pool.open();
      await shop.hasMade(kept);
      await shop.pool.settled();
      assert.deepEqual(shop.pool.state(), { ready: kept, target: kept });
      await shop.pool.close();
    }
  });

  it("never hands one out twice, whoever asks at once", async () => {
    const shop = new Workshop();
    shop.pool.open();
    for (let asked = 0; asked < 10; asked++) shop.pool.reserve(minimal);
    await shop.hasMade(10);
    const ids = Array.from({ length: 12 }, () => shop.pool.reserve(minimal)).filter((id) => id !== undefined);
    assert.equal(ids.length, 10);
    assert.equal(new Set(ids).size, 10);
    await shop.pool.close();
    assert.equal(shop.here.size, 0, "what was reserved and not claimed ends with the pool");
  });

  it("gives a template a place when it is used more than once, and takes it when its files go", async () => {
    const shop = new Workshop();
    shop.pool.open();
    shop.pool.reserve(template("t1"));
    await shop.hasMade(1);
    assert.equal(shop.pool.state().target, 1, "the minimum's alone");
    shop.pool.reserve(template("t1"));
    await shop.hasMade(3);
    assert.equal([...shop.here.values()].filter(({ origin }) => origin.kind === "template").length, 2);
    await shop.pool.drop("t1");
    assert.equal([...shop.here.values()].filter(({ origin }) => origin.kind === "template").length, 0);
    await shop.pool.close();
  });

  it("ends what is being made when its template's files go, before these do", async () => {
    const shop = new Workshop();
    const { promise: allowed, resolve: allow } = Promise.withResolvers<void>();
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    shop.before = async ({ origin }) => {
      if (origin.kind !== "template") return;
      begin();
      await allowed;
    };
    shop.pool.open();
    shop.pool.reserve(template("t1"));
    shop.pool.reserve(template("t1"));
    await begun;
    let isDropped = false;
    const dropped = shop.pool.drop("t1").then(() => {
      isDropped = true;
    });
    await new Promise(setImmediate);
    assert.ok(!isDropped);
    allow();
    await dropped;
    assert.ok([...shop.here.values()].every(({ origin }) => origin.kind === "base"));
    await shop.pool.close();
  });

  it("stays within its memory", async () => {
    const shop = new Workshop({ budgetBytes: 130 * mib });
    shop.pool.open();
    for (let asked = 0; asked < 10; asked++) shop.pool.reserve(minimal);
    await shop.hasMade(3);
    await shop.pool.settled();
    assert.deepEqual(shop.pool.state(), { ready: 3, target: 10 });
    await shop.pool.close();
    const none = new Workshop({ budgetBytes: 0 });
    none.pool.open();
    assert.equal(none.pool.reserve(minimal), undefined);
    assert.deepEqual(none.pool.state(), { ready: 0, target: 0 });
  });

  it("gives nobody one of another shape", async () => {
    const shop = new Workshop();
    shop.pool.open();
    await shop.hasMade(1);
    const { vcpus, memoryMb } = minimal.shape;
    for (const shape of [
      { vcpus: vcpus + 1, memoryMb },
      { vcpus, memoryMb: 2 * memoryMb },
    ]) {
      assert.equal(shop.pool.reserve({ ...minimal, shape }), undefined);
    }
    assert.equal(shop.pool.reserve(minimal), "cl-1");
    await shop.pool.close();
  });

  it("makes nothing while memory runs short, and gives back what it has when there is none", async () => {
    const shop = new Workshop();
    shop.pressure = "rising";
    shop.pool.open();
    await shop.pool.settled();
    assert.equal(shop.made, 0);
    shop.pressure = "none";
    await shop.hasMade(1);
    shop.pressure = "high";
    await shop.has(0);
    assert.equal(shop.pool.state().ready, 0);
    await shop.pool.close();
  });

  it("goes on after a failure, and forgets one whose VM ends", async () => {
    const shop = new Workshop();
    let attempts = 0;
    shop.before = async () => {
      if (++attempts === 1) throw new Error("no luck");
    };
    shop.pool.open();
    await shop.hasMade(1);
    assert.match(String(shop.failures[0]), /no luck/);
    shop.ends.get("cl-2")?.();
    await shop.hasMade(2);
    assert.match(String(shop.failures[1]), /has ended/);
    assert.equal(shop.pool.reserve(minimal), "cl-3");
    await shop.pool.close();
  });

  it("ends what is finished after it was closed", async () => {
    const shop = new Workshop();
    const { promise: allowed, resolve: allow } = Promise.withResolvers<void>();
    shop.before = () => allowed;
    shop.pool.open();
    const closed = shop.pool.close();
    allow();
    await closed;
    assert.equal(shop.made, 1);
    assert.equal(shop.here.size, 0);
    assert.ok(!shop.pool.holds("cl-1"));
  });

  it("remembers a bounded number of kinds, and the minimum always", async () => {
    const shop = new Workshop();
    shop.pool.open();
    await shop.hasMade(1);
    for (let each = 0; each < 100; each++) shop.pool.reserve(template(`t${each}`));
    assert.equal(shop.pool.reserve(minimal), "cl-1");
    await shop.pool.close();
  });
});

describe("the memory that a host has to spare", () => {
  it("is what programs can have without swapping, as a share of all", () => {
    assert.equal(shareAvailable("MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  250 kB\n"), 0.25);
  });

  it("runs short below 15 of a hundred, and is wanted back below 7", () => {
    const at = (share: number) => {
      const pressure = new MemoryPressure(() => `MemTotal:  1000 kB\nMemAvailable:  ${Math.round(10 * share)} kB\n`);
      return [pressure.isRising(), pressure.isHigh()];
    };
    assert.deepEqual([15, 14.9, 7, 6.9].map(at), [
      [false, false],
      [true, false],
      [true, false],
      [true, true],
    ]);
  });

  it("is taken for plenty where the kernel does not say", () => {
    assert.equal(shareAvailable("MemTotal:  1000 kB\n"), 1);
  });
});
