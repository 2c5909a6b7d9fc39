/** Who goes first when there are fewer slots than wishes. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Priority, StartScheduler } from "./start-scheduler.ts";

/** Starts `name`; it ends when told to. What has begun stands in `begun`, in order. */
class Workers {
  readonly begun: string[] = [];
  readonly #ends = new Map<string, () => void>();
  readonly #slots: StartScheduler;

  constructor(count: number) {
    this.#slots = new StartScheduler(count);
  }

  start(name: string, urgency: Priority): void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#ends.set(name, resolve);
    void this.#slots.run(() => {
      this.begun.push(name);
      return promise;
    }, urgency);
  }

  async end(name: string): Promise<void> {
    this.#ends.get(name)?.();
    await new Promise(setImmediate);
  }
}

test("more than there are slots wait in order", async () => {
  const workers = new Workers(2);
  for (const name of ["a", "b", "c", "d"]) workers.start(name, "now");
  await new Promise(setImmediate);
  assert.deepEqual(workers.begun, ["a", "b"]);
  await workers.end("b");
  await workers.end("a");
  assert.deepEqual(workers.begun, ["a", "b", "c", "d"]);
});

test("what can wait does so until nobody urgent is there, and keeps nobody waiting", async () => {
  const workers = new Workers(1);
  workers.start("urgent", "now");
  workers.start("later", "later");
  workers.start("later too", "later");
  workers.start("urgent too", "now");
  await new Promise(setImmediate);
  await workers.end("urgent");
  assert.deepEqual(workers.begun, ["urgent", "urgent too"]);
  await workers.end("urgent too");
  assert.deepEqual(workers.begun.slice(2), ["later"]);
  workers.start("latecomer", "now");
  await new Promise(setImmediate);
  assert.deepEqual(workers.begun.slice(3), ["latecomer"]);
  await workers.end("later");
  assert.equal(workers.begun.length, 4);
  await workers.end("latecomer");
  assert.deepEqual(workers.begun.slice(4), ["later too"]);
  await workers.end("later too");
});

test("a failure frees its slot", async () => {
  const slots = new StartScheduler(1);
  for (const urgency of ["now", "later"] as const) {
    await assert.rejects(
      slots.run(() => Promise.reject(new Error("no")), urgency),
      /no/,
    );
  }
  assert.equal(await slots.run(async () => 1), 1);
  assert.equal(await slots.run(async () => 2, "later"), 2);
});

test("who is no longer wanted leaves the line, and those behind move up", async () => {
  const slots = new StartScheduler(1);
  const begun: string[] = [];
  const first = Promise.withResolvers<void>();
  const running = slots.run(() => first.promise);
  const wish = new AbortController();
  const left = slots.run(async () => begun.push("left"), "now", wish.signal);
  const behind = slots.run(async () => begun.push("behind"));
  wish.abort(new Error("unwanted"));
  await assert.rejects(left, /unwanted/);
  first.resolve();
  await Promise.all([running, behind]);
  assert.deepEqual(begun, ["behind"]);
  await assert.rejects(
    slots.run(() => Promise.reject(new Error("no")), "now", wish.signal),
    /no/,
    "a free slot is taken all the same; the work looks for itself",
  );
});

test("whoever is called and unwanted at the same moment hands the slot on", async () => {
  const slots = new StartScheduler(1);
  const first = Promise.withResolvers<void>();
  const running = slots.run(() => first.promise);
  const wish = new AbortController();
  const called = slots.run(async () => "worked", "now", wish.signal);
  void running.then(() => wish.abort(new Error("unwanted")));
  first.resolve();
  await called.catch((error: Error) => assert.equal(error.message, "unwanted"));
  assert.equal(await slots.run(async () => "next"), "next");
});

test("whoever waits for later and is no longer wanted leaves the line, and does not hold up the next", async () => {
  const slots = new StartScheduler(1);
  const urgent = Promise.withResolvers<void>();
  const running = slots.run(() => urgent.promise);
  const wish = new AbortController();
  const left = slots.run(() => Promise.reject(new Error("it ran")), "later", wish.signal);
  const next = slots.run(async () => "next", "later");
  wish.abort(new Error("unwanted"));
  await assert.rejects(left, /unwanted/);
  urgent.resolve();
  await running;
  assert.equal(await next, "next");
});

test("what can wait does so until all have been free for a while", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const slots = new StartScheduler(1, { started: 300, given: 100 });
  const begun: string[] = [];
  const pass = async (ms: number) => {
    t.mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
  await slots.run(async () => {});
  const later = slots.run(async () => begun.push("later"), "later");
  await pass(299);
  await slots.run(async () => {}); // from here on anew
  await pass(299);
  assert.deepEqual(begun, []);
  await pass(1);
  await later;
  assert.deepEqual(begun, ["later"]);
});

test("what can wait does so for what runs beside the slots, and for a while after it, however it ended", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const slots = new StartScheduler(1, { started: 300, given: 100 });
  const begun: string[] = [];
  const pass = async (ms: number) => {
    t.mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
  const works = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
  const beside = works.map(({ promise }) => slots.runUnslotted(() => promise));
  const later = slots.run(async () => begun.push("later"), "later");
  assert.equal(await slots.runUnslotted(async () => 1), 1, "more than there are slots");
  works[0].resolve();
  await beside[0];
  await pass(1_000);
  assert.deepEqual(begun, [], "one is at work");
  works[1].reject(new Error("no"));
  await assert.rejects(beside[1]!, /no/);
  await pass(99);
  await slots.runUnslotted(async () => {}); // from here on anew
  await pass(99);
  assert.deepEqual(begun, []);
  await pass(1);
  await later;
  assert.deepEqual(begun, ["later"]);
});

test("what runs beside the slots makes nobody wait longer for those that were left before it", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const slots = new StartScheduler(1, { started: 300, given: 100 });
  await slots.run(async () => {});
  const later = slots.run(async () => "later", "later");
  t.mock.timers.tick(250);
  await slots.runUnslotted(async () => {});
  t.mock.timers.tick(100);
  assert.equal(await later, "later");
});
