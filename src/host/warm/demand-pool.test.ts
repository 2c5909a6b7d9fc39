/** A demand pool makes and ends items while its limits are below the demand. Items are names. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it } from "node:test";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { within } from "../../../test/wait-for.ts";
import { DemandPool, type DemandPoolOptions } from "./demand-pool.ts";

interface Thing {
  name: string;
  costBytes: number;
  ended: Promise<unknown>;
}

class Fixture {
  readonly here: string[] = [];
  readonly failures: unknown[] = [];
  failing = "";
  onMake = async () => {};
  begun = 0;
  #onMade = () => {};
  #onPoll = () => {};
  readonly pool: DemandPool<string, Thing>;

  constructor(options: Partial<DemandPoolOptions<string, Thing>> = {}) {
    this.pool = new DemandPool<string, Thing>({
      nameOf: (key) => key,
      make: (key) => this.#make(key),
      end: async ({ name }) => {
        this.here.splice(this.here.indexOf(name), 1);
      },
      describe: ({ name }) => name,
      pressure: { isRising: () => this.#polled(), isHigh: () => false },
      budgetBytes: 1_000,
      maxCount: 3,
      expectedBytes: 1,
      onFailure: (error) => this.failures.push(error),
      ...options,
    });
  }

  claim(key: string, count: number): void {
    for (let each = 0; each < count; each++) this.pool.claim(key);
  }

  /** Resolves when `here` holds these, in any order. */
  async has(...names: string[]): Promise<void> {
    const hasAll = async () => {
      while (this.here.toSorted().join() !== names.toSorted().join()) {
        await new Promise<void>((resolve) => {
          this.#onMade = resolve;
        });
      }
    };
    await within(() => `${names} are here, not ${this.here}`, hasAll());
  }

  /** Resolves after the next poll, when everything it began is made. */
  async polled(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#onPoll = resolve;
    });
    await this.pool.settled();
  }

  /** There is never memory pressure. */
  #polled(): boolean {
    this.#onPoll();
    return false;
  }

  async #make(name: string): Promise<Thing> {
    this.begun++;
    await this.onMake();
    if (name === this.failing) throw new Error(`no ${name} can be made`);
    this.here.push(name);
    setImmediate(() => this.#onMade());
    return { name, costBytes: 1, ended: new Promise(() => {}) };
  }
}

describe("a demand pool", () => {
  it("aborts the item that is being made for a dropped key, and reports no failure", async () => {
    let begun = Promise.withResolvers<void>();
    const fixture = new Fixture({
      make: async (_key, signal) => {
        begun.resolve();
        await once(signal, "abort");
        throw signal.reason;
      },
    });
    fixture.pool.open();
    fixture.claim("a", 2);
    await begun.promise;
    begun = Promise.withResolvers();
    await fixture.pool.drop((key) => key === "a");
    fixture.claim("b", 2);
    await begun.promise;
    await fixture.pool.close();
    assert.deepEqual(fixture.failures, []);
  });

  it("makes the items of a renewed key anew, also without a claim", async () => {
    const fixture = new Fixture({ minimum: { key: "a", size: 2 }, maxCount: 8 });
    fixture.pool.open();
    await fixture.has("a", "a");
    await fixture.pool.renew((key) => key === "b");
    assert.deepEqual(fixture.here, ["a", "a"]);
    const begun = fixture.begun;
    await fixture.pool.renew((key) => key === "a");
    await fixture.has("a", "a");
    assert.equal(fixture.begun, begun + 2);
    await fixture.pool.close();
  });

  it("polls once for many claims in a row", async (t) => {
    const fixture = new Fixture();
    fixture.pool.open();
    await fixture.pool.settled();
    const timers = t.mock.method(globalThis, "setTimeout");
    fixture.claim("a", 20);
    assert.equal(timers.mock.callCount(), 1);
    await fixture.has("a", "a", "a");
    await fixture.pool.close();
  });

  it("waits again when an item is claimed during the delay", async (t) => {
    const { pass } = steadyClock(t);
    const fixture = new Fixture();
    fixture.pool.open();
    await fixture.pool.settled();
    fixture.claim("a", 2);
    await pass(90);
    fixture.claim("a", 1);
    await pass(90);
    assert.deepEqual(fixture.here, [], "the delay counts from the last claim");
    await pass(60);
    assert.notDeepEqual(fixture.here, []);
    await fixture.pool.close();
  });

  it("pauses as long as making an item took, unless a key has run out", async (t) => {
    const clock = steadyClock(t);
    const fixture = new Fixture({ pressure: { isRising: () => false, isHigh: () => false } });
    fixture.onMake = () => new Promise((resolve) => setTimeout(resolve, 5_000));
    fixture.pool.open();
    await fixture.pool.settled();
    fixture.claim("a", 3);
    await clock.pass(100);
    await clock.pass(5_000);
    assert.deepEqual(fixture.here, ["a"], "the first one at once");
    await clock.pass(4_999);
    assert.equal(fixture.begun, 1, "it works at most half of the time");
    await clock.pass(1);
    assert.equal(fixture.begun, 2);
    await clock.pass(5_000);
    assert.deepEqual(fixture.here, ["a", "a"]);
    fixture.claim("b", 2);
    await clock.pass(100);
    await clock.pass(5_000);
    assert.deepEqual(fixture.here, ["a", "a", "b"], "no b was ready");
    await fixture.pool.close();
  });

  it("ends items beyond the recent demand", async (t) => {
    const clock = steadyClock(t);
    const fixture = new Fixture({ pressure: { isRising: () => false, isHigh: () => false } });
    fixture.pool.open();
    fixture.claim("a", 3);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(fixture.here, ["a", "a", "a"]);
    clock.move(300_000);
    fixture.claim("a", 2);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(fixture.pool.state(), { ready: 3, target: 3 });
    clock.move(292_000); // ten minutes after the three, five after the two
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(fixture.pool.state(), { ready: 2, target: 2 });
    assert.equal(fixture.here.length, 4, "and two that were claimed");
    clock.move(300_000);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(fixture.pool.state(), { ready: 0, target: 0 });
    assert.equal(fixture.here.length, 2, "which the pool does not end");
    await fixture.pool.close();
  });

  it("keeps no more than its limit, and limits its target likewise", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    fixture.claim("a", 10);
    await fixture.has("a", "a", "a");
    await fixture.pool.settled();
    assert.deepEqual(fixture.pool.state(), { ready: 3, target: 3 });
    await fixture.pool.close();
    assert.deepEqual(fixture.here, []);
  });

  it("ends the second item of one key for the first of another, but no key's last item", async () => {
    const fixture = new Fixture();
    fixture.pool.open();
    fixture.claim("a", 10);
    await fixture.has("a", "a", "a");
    fixture.claim("b", 5);
    await fixture.has("a", "a", "b");
    fixture.claim("c", 5);
    await fixture.has("a", "b", "c");
    fixture.claim("d", 2);
    await fixture.polled();
    assert.deepEqual(fixture.here.toSorted(), ["a", "b", "c"]);
    await fixture.pool.close();
  });

  it("reports items that cannot be made, and makes the others", async () => {
    const fixture = new Fixture({ maxCount: 2 });
    fixture.pool.open();
    fixture.failing = "b";
    fixture.claim("b", 2);
    fixture.claim("a", 5);
    await fixture.has("a", "a");
    assert.deepEqual([...new Set(fixture.failures.map(String))], ["Error: no b can be made"]);
    await fixture.polled();
    assert.deepEqual(fixture.pool.state(), { ready: 2, target: 2 });
    await fixture.pool.close();
  });

  it("makes nothing with a limit of zero", () => {
    for (const none of [{ maxCount: 0 }, { budgetBytes: 0 }]) {
      const { pool } = new Fixture(none);
      pool.open();
      assert.equal(pool.claim("a"), undefined);
      assert.equal(pool.isOpen, false);
    }
  });
});
