/** The warm pool keeps capsules ready, hands them out and ends them. Capsules are names. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { waitFor } from "../../../test/wait-for.ts";
import type { LiveGuest } from "../guest.ts";
import { type WarmCapsule, type WarmKey, WarmPool, type WarmPoolOptions } from "./warm-pool.ts";

const minimal: WarmKey = { origin: { kind: "base", name: "minimal" }, shape: { vcpus: 1, memoryMb: 512 } };
const template = (storage: string): WarmKey => ({ ...minimal, origin: { kind: "template", storage } });
const mib = 2 ** 20;

/** A pool whose capsules are made and ended at once, unless a test delays them. */
class Fixture {
  readonly here = new Map<string, WarmKey>();
  readonly failures: unknown[] = [];
  readonly ends = new Map<string, () => void>();
  made = 0;
  pressure: "none" | "rising" | "high" = "none";
  /** Called before a capsule is made. */
  before: (key: WarmKey) => Promise<void> = async () => {};
  readonly pool: WarmPool;

  constructor(options: Partial<WarmPoolOptions> = {}) {
    let ids = 0;
    this.pool = new WarmPool({
      capsules: { make: (id, key) => this.#make(id, key), end: (warm) => this.#end(warm) },
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
    await waitFor(`${count} were made`, () => this.made >= count);
    await new Promise(setImmediate);
  }

  /** Resolves when this many exist. */
  async has(count: number): Promise<void> {
    await waitFor(`${count} exist`, () => this.here.size === count);
  }

  async #make(id: string, key: WarmKey): Promise<WarmCapsule> {
    await this.before(key);
    this.here.set(id, key);
    this.made++;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.ends.set(id, resolve);
    return { id, guest: {} as LiveGuest, parentFolder: `/parent of ${id}`, costBytes: 40 * mib, ended: promise };
  }

  async #end({ id }: WarmCapsule): Promise<void> {
    this.here.delete(id);
  }
}

describe("the warm pool", () => {
  it("makes a capsule of the minimum at once, hands it out once, and makes another", async () => {
    const fixture = new Fixture();
    assert.equal(fixture.pool.reserve(minimal), undefined, "it is not open yet");
    fixture.pool.open();
    await fixture.hasMade(1);
    assert.deepEqual(fixture.pool.state(), { ready: 1, target: 1 });
    assert.ok(fixture.pool.holds("cl-1"));
    assert.equal(fixture.pool.reserve(minimal), "cl-1");
    assert.ok(!fixture.pool.holds("cl-1"), "a reserved capsule is the caller's");
    assert.equal(fixture.pool.reserve(minimal), undefined);
    assert.equal(fixture.pool.reserved, 1);
    assert.equal(fixture.pool.claim("cl-1")?.id, "cl-1");
    assert.equal(fixture.pool.reserved, 0);
    assert.equal(fixture.pool.claim("cl-1"), undefined);
    await fixture.hasMade(3); // two were claimed within the window
    assert.deepEqual(fixture.pool.state(), { ready: 2, target: 2 });
    await fixture.pool.close();
    assert.deepEqual([...fixture.here.keys()], ["cl-1"], "the pool does not end a claimed capsule");
  });

  it("keeps the minimum, within half of its memory, and none for a minimum of zero", async () => {
    for (const [size, budgetBytes, kept] of [
      [3, 1_000 * mib, 3],
      [3, 170 * mib, 2],
      [3, 70 * mib, 1],
      [0, 1_000 * mib, 0],
    ] as const) {
      const fixture = new Fixture({ minimum: { key: minimal, size }, budgetBytes });
      fixture.pool.open();
      await fixture.hasMade(kept);
      await fixture.pool.settled();
      assert.deepEqual(fixture.pool.state(), { ready: kept, target: kept });
      await fixture.pool.close();
    }
  });

  it("never hands a capsule out twice", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    for (let claims = 0; claims < 10; claims++) fixture.pool.reserve(minimal);
    await fixture.hasMade(10);
    const ids = Array.from({ length: 12 }, () => fixture.pool.reserve(minimal)).filter((id) => id !== undefined);
    assert.equal(ids.length, 10);
    assert.equal(new Set(ids).size, 10);
    await fixture.pool.close();
    assert.equal(fixture.here.size, 0, "a capsule that was reserved and not claimed ends with the pool");
  });

  it("keeps capsules of a template that is used more than once, and ends them with its files", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    fixture.pool.reserve(template("t1"));
    await fixture.hasMade(1);
    assert.equal(fixture.pool.state().target, 1, "the minimum only");
    fixture.pool.reserve(template("t1"));
    await fixture.hasMade(3);
    assert.equal([...fixture.here.values()].filter(({ origin }) => origin.kind === "template").length, 2);
    await fixture.pool.drop("t1");
    assert.equal([...fixture.here.values()].filter(({ origin }) => origin.kind === "template").length, 0);
    await fixture.pool.close();
  });

  it("ends a capsule that is being made before its template's files are removed", async () => {
    const fixture = new Fixture();
    const { promise: allowed, resolve: allow } = Promise.withResolvers<void>();
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    fixture.before = async ({ origin }) => {
      if (origin.kind !== "template") return;
      begin();
      await allowed;
    };
    fixture.pool.open();
    fixture.pool.reserve(template("t1"));
    fixture.pool.reserve(template("t1"));
    await begun;
    let isDropped = false;
    const dropped = fixture.pool.drop("t1").then(() => {
      isDropped = true;
    });
    await new Promise(setImmediate);
    assert.ok(!isDropped);
    allow();
    await dropped;
    assert.ok([...fixture.here.values()].every(({ origin }) => origin.kind === "base"));
    await fixture.pool.close();
  });

  it("stays within its memory budget", async () => {
    const fixture = new Fixture({ budgetBytes: 130 * mib });
    fixture.pool.open();
    for (let claims = 0; claims < 10; claims++) fixture.pool.reserve(minimal);
    await fixture.hasMade(3);
    await fixture.pool.settled();
    assert.deepEqual(fixture.pool.state(), { ready: 3, target: 10 });
    await fixture.pool.close();
    const none = new Fixture({ budgetBytes: 0 });
    none.pool.open();
    assert.equal(none.pool.reserve(minimal), undefined);
    assert.deepEqual(none.pool.state(), { ready: 0, target: 0 });
  });

  it("does not hand out a capsule of another shape", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    await fixture.hasMade(1);
    const { vcpus, memoryMb } = minimal.shape;
    for (const shape of [
      { vcpus: vcpus + 1, memoryMb },
      { vcpus, memoryMb: 2 * memoryMb },
    ]) {
      assert.equal(fixture.pool.reserve({ ...minimal, shape }), undefined);
    }
    assert.equal(fixture.pool.reserve(minimal), "cl-1");
    await fixture.pool.close();
  });

  it("makes nothing under memory pressure, and ends everything when it is high", async (t) => {
    const clock = steadyClock(t);
    const fixture = new Fixture();
    fixture.pressure = "rising";
    fixture.pool.open();
    await fixture.pool.settled();
    assert.equal(fixture.made, 0);
    fixture.pressure = "none";
    await clock.pass(1_000);
    await fixture.hasMade(1);
    await fixture.pool.settled();
    fixture.pressure = "high";
    await clock.pass(1_000);
    await fixture.has(0);
    assert.equal(fixture.pool.state().ready, 0);
    await fixture.pool.close();
  });

  it("retries after a failure, and drops a capsule whose VM has ended", async (t) => {
    const clock = steadyClock(t);
    const fixture = new Fixture();
    let attempts = 0;
    fixture.before = async () => {
      if (++attempts === 1) throw new Error("no memory");
    };
    fixture.pool.open();
    await fixture.pool.settled();
    assert.match(String(fixture.failures[0]), /no memory/);
    await clock.pass(1_000);
    await fixture.hasMade(1);
    await fixture.pool.settled();
    fixture.ends.get("cl-2")?.();
    await waitFor("the end is reported", () => fixture.failures.length === 2);
    await clock.pass(1_000);
    await fixture.hasMade(2);
    assert.match(String(fixture.failures[1]), /has ended/);
    assert.equal(fixture.pool.reserve(minimal), "cl-3");
    await fixture.pool.close();
  });

  it("ends a capsule that is finished after it was closed", async () => {
    const fixture = new Fixture();
    const { promise: allowed, resolve: allow } = Promise.withResolvers<void>();
    fixture.before = () => allowed;
    fixture.pool.open();
    const closed = fixture.pool.close();
    allow();
    await closed;
    assert.equal(fixture.made, 1);
    assert.equal(fixture.here.size, 0);
    assert.ok(!fixture.pool.holds("cl-1"));
  });

  it("keeps a bounded number of keys, and always that of the minimum", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    await fixture.hasMade(1);
    for (let each = 0; each < 100; each++) fixture.pool.reserve(template(`t${each}`));
    assert.equal(fixture.pool.reserve(minimal), "cl-1");
    await fixture.pool.close();
  });
});
