/** The order in which pieces of work of several owners get a slot. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FairSlots } from "./fair-slots.ts";

/** Pieces of work by name, of the owner that the name begins with. `begun` lists those that have begun, in order. */
class Works {
  readonly slots: FairSlots;
  readonly begun: string[] = [];
  readonly #ends = new Map<string, () => void>();

  constructor(slots: number, perOwner = slots) {
    this.slots = new FairSlots(slots, { perOwner });
  }

  queue(name: string, signal?: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#ends.set(name, resolve);
    const work = () => {
      this.begun.push(name);
      return promise;
    };
    return this.slots.run(name[0]!, work, signal);
  }

  async end(name: string): Promise<void> {
    this.#ends.get(name)?.();
    await new Promise(setImmediate);
  }

  /** Ends each piece of work as soon as it has begun. */
  async endAll(): Promise<void> {
    for (let at = 0; at < this.begun.length; at++) await this.end(this.begun[at]!);
  }
}

const turn = () => new Promise(setImmediate);

test("work begins in the tick of its call while slots are free", async () => {
  const works = new Works(2);
  for (const name of ["a1", "a2", "a3"]) void works.queue(name);
  assert.deepEqual(works.begun, ["a1", "a2"]);
  assert.ok(!works.slots.isIdle);
  await works.endAll();
  assert.ok(works.slots.isIdle);
});

test("one owner's work gets slots in order of arrival", async () => {
  const works = new Works(2);
  for (const name of ["a1", "a2", "a3", "a4"]) void works.queue(name);
  await works.end("a2");
  await works.end("a1");
  assert.deepEqual(works.begun, ["a1", "a2", "a3", "a4"]);
});

test("owners get slots in turn, however much each has queued", async () => {
  const works = new Works(1);
  for (const name of ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]) void works.queue(name);
  await works.endAll();
  assert.deepEqual(works.begun, ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]);
});

test("behind 1 000 pieces of one owner's work, another's begins when one more of them has", async () => {
  const works = new Works(4);
  for (let index = 0; index < 1_000; index++) void works.queue(`a${index}`);
  void works.queue("b");
  await works.endAll();
  assert.equal(works.begun.indexOf("b"), 5, "four in the slots, and one of the owner whose turn it was");
  assert.equal(works.begun.length, 1_001);
});

test("an owner with as many slots as it may have is passed over, in its queue and at its call", async () => {
  const works = new Works(3, 1);
  for (const name of ["a1", "a2", "a3", "b1"]) void works.queue(name);
  assert.deepEqual(works.begun, ["a1", "b1"]);
  await works.end("b1");
  assert.deepEqual(works.begun, ["a1", "b1"], "a slot is free, and its owner has one");
  void works.queue("b2");
  await works.end("a1");
  assert.deepEqual(works.begun, ["a1", "b1", "b2", "a2"]);
  for (const name of ["c1", "b3"]) void works.queue(name);
  await works.end("b2");
  assert.deepEqual(works.begun.slice(4), ["c1", "b3"]);
  await works.endAll();
  assert.deepEqual(works.begun.toSorted(), ["a1", "a2", "a3", "b1", "b2", "b3", "c1"]);
  assert.ok(works.slots.isIdle);
});

test("an owner that comes again queues behind the others", async () => {
  const works = new Works(1);
  for (const name of ["a1", "b1", "b2"]) void works.queue(name);
  await works.end("a1");
  void works.queue("a2");
  await works.endAll();
  assert.deepEqual(works.begun, ["a1", "b1", "b2", "a2"]);
});

test("aborted work leaves its queue, and the work behind it moves up", async () => {
  const works = new Works(1);
  void works.queue("a1");
  const [one, other] = [new AbortController(), new AbortController()];
  const aborted = [works.queue("a2", one.signal), works.queue("b1", other.signal)];
  void works.queue("a3");
  for (const each of [one, other]) each.abort(new Error("deleted"));
  for (const each of aborted) await assert.rejects(each, /deleted/);
  await works.endAll();
  assert.deepEqual(works.begun, ["a1", "a3"]);
  const begun = works.queue("a4", one.signal);
  assert.equal(works.begun.at(-1), "a4", "with a free slot the work begins, and checks its signal itself");
  await works.end("a4");
  await begun;
  assert.ok(works.slots.isIdle);
});

test("work that is aborted in the moment in which it gets a slot gives it back", async () => {
  const works = new Works(1);
  const first = works.queue("a1");
  const abort = new AbortController();
  const called = works.queue("a2", abort.signal);
  void first.then(() => abort.abort(new Error("deleted")));
  await works.end("a1");
  await works.end("a2");
  await called.catch((error: Error) => assert.equal(error.message, "deleted"));
  await turn();
  assert.ok(works.slots.isIdle);
});

test("failed work frees its slot", async () => {
  const slots = new FairSlots(1);
  const fail = () => Promise.reject(new Error("no"));
  const behind = [slots.run("a", fail), slots.run("a", fail), slots.run("b", async () => "b")] as const;
  await assert.rejects(behind[0], /no/);
  await assert.rejects(behind[1], /no/);
  assert.equal(await behind[2], "b");
});
