/** What a stock keeps when it cannot keep all that is wanted; the things are names. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it, type TestContext } from "node:test";
import { DemandPool, type DemandPoolOptions } from "./demand-pool.ts";

interface Thing {
  name: string;
  costBytes: number;
  ended: Promise<unknown>;
}

class Shelved {
  readonly here: string[] = [];
  readonly failures: unknown[] = [];
  failing = "";
  onMaking = () => {};
  #onMade = () => {};
  #onLook = () => {};
  readonly stock: DemandPool<string, Thing>;

  constructor(options: Partial<DemandPoolOptions<string, Thing>> = {}) {
    this.stock = new DemandPool<string, Thing>({
      keyOf: (kind) => kind,
      make: (kind) => this.#make(kind),
      end: async ({ name }) => {
        this.here.splice(this.here.indexOf(name), 1);
      },
      nameOf: ({ name }) => name,
      pressure: { isRising: () => this.#looked(), isHigh: () => false },
      budgetBytes: 1_000,
      maxCount: 3,
      expectedBytes: 1,
      onFailure: (error) => this.failures.push(error),
      ...options,
    });
  }

  want(kind: string, count: number): void {
    for (let each = 0; each < count; each++) this.stock.claim(kind);
  }

  /** Resolves when `here` holds these, in whatever order. */
  async has(...names: string[]): Promise<void> {
    while (this.here.toSorted().join() !== names.toSorted().join()) {
      await new Promise<void>((resolve) => {
        this.#onMade = resolve;
      });
    }
  }

  /** Resolves when it has thought about what to make, and made it. */
  async looks(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#onLook = resolve;
    });
    await this.stock.settled();
  }

  /** The host has memory to spare, always. */
  #looked(): boolean {
    this.#onLook();
    return false;
  }

  async #make(name: string): Promise<Thing> {
    this.onMaking();
    if (name === this.failing) throw new Error(`no ${name} can be made`);
    this.here.push(name);
    setImmediate(() => this.#onMade());
    return { name, costBytes: 1, ended: new Promise(() => {}) };
  }
}

/** A clock that stands still unless it is moved; `pass` lets what is due happen. */
function steadyClock(t: TestContext) {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let nowMs = 1_000;
  t.mock.method(performance, "now", () => nowMs);
  const move = (ms: number) => {
    nowMs += ms;
  };
  const pass = async (ms: number) => {
    move(ms);
    t.mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
  return { move, pass };
}

describe("a stock", () => {
  it("tells whoever makes one when nobody wants it any longer, which is no failure", async () => {
    let begun = Promise.withResolvers<void>();
    const shelved = new Shelved({
      make: async (_kind, signal) => {
        begun.resolve();
        await once(signal, "abort");
        throw signal.reason;
      },
    });
    shelved.stock.open();
    shelved.want("a", 2);
    await begun.promise;
    begun = Promise.withResolvers();
    await shelved.stock.drop((kind) => kind === "a");
    shelved.want("b", 2);
    await begun.promise;
    await shelved.stock.close();
    assert.deepEqual(shelved.failures, []);
  });

  it("looks once for all that were taken one soon after the other", async (t) => {
    const shelved = new Shelved();
    shelved.stock.open();
    await shelved.stock.settled();
    const timers = t.mock.method(globalThis, "setTimeout");
    shelved.want("a", 20);
    assert.equal(timers.mock.callCount(), 1);
    await shelved.has("a", "a", "a");
    await shelved.stock.close();
  });

  it("goes on looking when one is taken while it waits to look", async (t) => {
    const { pass } = steadyClock(t);
    const shelved = new Shelved();
    shelved.stock.open();
    await shelved.stock.settled();
    shelved.want("a", 2);
    await pass(90);
    shelved.want("a", 1);
    await pass(90);
    assert.deepEqual(shelved.here, [], "whoever came last is being served");
    await pass(60);
    assert.notDeepEqual(shelved.here, []);
    await shelved.stock.close();
  });

  it("rests as long as it worked, unless a kind has run out", async (t) => {
    const clock = steadyClock(t);
    const shelved = new Shelved({ pressure: { isRising: () => false, isHigh: () => false } });
    shelved.onMaking = () => clock.move(5_000);
    shelved.stock.open();
    await shelved.stock.settled();
    shelved.want("a", 3);
    await clock.pass(130);
    await shelved.stock.settled();
    assert.deepEqual(shelved.here, ["a"], "the first at once");
    await clock.pass(4_900);
    await shelved.stock.settled();
    assert.deepEqual(shelved.here, ["a"], "it works half of the time, and not more");
    await clock.pass(200);
    await shelved.stock.settled();
    assert.deepEqual(shelved.here, ["a", "a"]);
    shelved.want("b", 2);
    await clock.pass(130);
    await shelved.stock.settled();
    assert.deepEqual(shelved.here, ["a", "a", "b"], "of b there was none");
    await shelved.stock.close();
  });

  it("ends what is more than was asked for of late", async (t) => {
    const clock = steadyClock(t);
    const shelved = new Shelved({ pressure: { isRising: () => false, isHigh: () => false } });
    shelved.stock.open();
    shelved.want("a", 3);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(shelved.here, ["a", "a", "a"]);
    clock.move(300_000);
    shelved.want("a", 2);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(shelved.stock.state(), { ready: 3, target: 3 });
    clock.move(292_000); // ten minutes after the three, five after the two
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(shelved.stock.state(), { ready: 2, target: 2 });
    assert.equal(shelved.here.length, 4, "and two that were taken");
    clock.move(300_000);
    for (let second = 0; second < 5; second++) await clock.pass(1_000);
    assert.deepEqual(shelved.stock.state(), { ready: 0, target: 0 });
    assert.equal(shelved.here.length, 2, "which are not the stock's to end");
    await shelved.stock.close();
  });

  it("holds no more than its number, and says that it wants no more", async () => {
    const shelved = new Shelved();
    shelved.stock.open();
    shelved.want("a", 10);
    await shelved.has("a", "a", "a");
    await shelved.stock.settled();
    assert.deepEqual(shelved.stock.state(), { ready: 3, target: 3 });
    await shelved.stock.close();
    assert.deepEqual(shelved.here, []);
  });

  it("gives the second of one kind up for the first of another, and no kind up altogether", async () => {
    const shelved = new Shelved();
    shelved.stock.open();
    shelved.want("a", 10);
    await shelved.has("a", "a", "a");
    shelved.want("b", 5);
    await shelved.has("a", "a", "b");
    shelved.want("c", 5);
    await shelved.has("a", "b", "c");
    shelved.want("d", 2);
    await shelved.looks();
    assert.deepEqual(shelved.here.toSorted(), ["a", "b", "c"]);
    await shelved.stock.close();
  });

  it("tells of what cannot be made, and makes the others", async () => {
    const shelved = new Shelved({ maxCount: 2 });
    shelved.stock.open();
    shelved.failing = "b";
    shelved.want("b", 2);
    shelved.want("a", 5);
    await shelved.has("a", "a");
    await shelved.looks();
    assert.deepEqual(shelved.failures.map(String), ["Error: no b can be made"]);
    assert.deepEqual(shelved.stock.state(), { ready: 2, target: 2 });
    await shelved.stock.close();
  });

  it("makes nothing where its number or its memory is none", () => {
    for (const none of [{ maxCount: 0 }, { budgetBytes: 0 }]) {
      const { stock } = new Shelved(none);
      stock.open();
      assert.equal(stock.claim("a"), undefined);
      assert.equal(stock.isOpen, false);
    }
  });
});
