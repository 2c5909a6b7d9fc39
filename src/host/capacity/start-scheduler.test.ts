/** The order in which VMs are started when there are fewer slots than requests. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { StartScheduler } from "./start-scheduler.ts";

const turn = { owner: "a team" };

type Discipline = "run" | "runBackground";

/** Starts jobs by name; each ends when told to. `begun` lists those that have begun, in order. */
class Jobs {
  readonly begun: string[] = [];
  readonly #ends = new Map<string, () => void>();
  readonly #scheduler: StartScheduler;

  constructor(slots: number) {
    this.#scheduler = new StartScheduler(slots);
  }

  start(name: string, discipline: Discipline): void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#ends.set(name, resolve);
    const work = () => {
      this.begun.push(name);
      return promise;
    };
    void (discipline === "run" ? this.#scheduler.run(turn, work) : this.#scheduler.runBackground(work));
  }

  async end(name: string): Promise<void> {
    this.#ends.get(name)?.();
    await new Promise(setImmediate);
  }
}

test("background jobs start one at a time when all slots are free, and occupy none", async () => {
  const jobs = new Jobs(1);
  jobs.start("slotted", "run");
  jobs.start("background", "runBackground");
  jobs.start("background 2", "runBackground");
  jobs.start("slotted 2", "run");
  await new Promise(setImmediate);
  await jobs.end("slotted");
  assert.deepEqual(jobs.begun, ["slotted", "slotted 2"]);
  await jobs.end("slotted 2");
  assert.deepEqual(jobs.begun.slice(2), ["background"]);
  jobs.start("slotted 3", "run");
  await new Promise(setImmediate);
  assert.deepEqual(jobs.begun.slice(3), ["slotted 3"]);
  await jobs.end("background");
  assert.equal(jobs.begun.length, 4);
  await jobs.end("slotted 3");
  assert.deepEqual(jobs.begun.slice(4), ["background 2"]);
  await jobs.end("background 2");
});

test("a failed job frees its slot", async () => {
  const scheduler = new StartScheduler(1);
  const fail = () => Promise.reject(new Error("no"));
  await assert.rejects(scheduler.run(turn, fail), /no/);
  await assert.rejects(scheduler.runBackground(fail), /no/);
  assert.equal(await scheduler.run(turn, async () => 1), 1);
  assert.equal(await scheduler.runBackground(async () => 2), 2);
});

test("a start takes the memory that was admitted for it when its turn comes, does not begin when it is gone, and says when it is loaded", async () => {
  const scheduler = new StartScheduler(1);
  const events: string[] = [];
  const admittedAs = (name: string) => ({
    begin() {
      events.push(`${name} takes its memory`);
      if (name === "late") throw new Error("it is gone");
    },
    loaded: () => events.push(`${name} is loaded`),
    [Symbol.dispose]: () => events.push(`${name} gives it back`),
  });
  const slotted = Promise.withResolvers<void>();
  const start = (name: string, work: () => Promise<void>) =>
    scheduler.run({ ...turn, admitted: admittedAs(name) }, async () => {
      events.push(`${name} begins`);
      await work();
    });
  const first = start("first", () => slotted.promise);
  const [late, next] = [start("late", async () => {}), start("next", async () => {})];
  assert.deepEqual(events.splice(0), ["first takes its memory", "first begins"]);
  slotted.resolve();
  await assert.rejects(late, /it is gone/);
  await Promise.all([first, next]);
  assert.deepEqual(events, [
    "first is loaded",
    "late takes its memory",
    "next takes its memory",
    "next begins",
    "next is loaded",
  ]);
});

test("an aborted background job does not hold up the next one", async () => {
  const scheduler = new StartScheduler(1);
  const slotted = Promise.withResolvers<void>();
  const running = scheduler.run(turn, () => slotted.promise);
  const abort = new AbortController();
  const aborted = scheduler.runBackground(() => Promise.reject(new Error("it ran")), abort.signal);
  const next = scheduler.runBackground(async () => "next");
  abort.abort(new Error("aborted"));
  await assert.rejects(aborted, /aborted/);
  slotted.resolve();
  await running;
  assert.equal(await next, "next");
});

const quiet = { slottedMs: 300, unslottedMs: 100 };

test("background jobs wait for the quiet period after the last slotted job", async (t) => {
  const { pass } = steadyClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  await scheduler.run(turn, async () => {});
  const background = scheduler.runBackground(async () => begun.push("background"));
  await pass(299);
  await scheduler.run(turn, async () => {}); // the period begins anew
  await pass(299);
  assert.deepEqual(begun, []);
  await pass(1);
  await background;
  assert.deepEqual(begun, ["background"]);
});

test("background jobs wait for unslotted jobs and for the quiet period after them, also when they fail", async (t) => {
  const { pass } = steadyClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  const works = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
  const unslotted = works.map(({ promise }) => scheduler.runUnslotted(() => promise));
  const background = scheduler.runBackground(async () => begun.push("background"));
  assert.equal(await scheduler.runUnslotted(async () => 1), 1, "more than there are slots");
  works[0].resolve();
  await unslotted[0];
  await pass(999);
  assert.deepEqual(begun, [], "one is running");
  works[1].reject(new Error("no"));
  await assert.rejects(unslotted[1]!, /no/);
  await pass(99);
  await scheduler.runUnslotted(async () => {}); // the period begins anew
  await pass(99);
  assert.deepEqual(begun, []);
  await pass(1);
  await background;
  assert.deepEqual(begun, ["background"]);
});

test("an unslotted job that does not end holds background jobs off for a second, and its end begins the period that it names", async (t) => {
  const { pass } = steadyClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  const silent = Promise.withResolvers<void>();
  const waiting = scheduler.runUnslotted(() => silent.promise, "slottedMs");
  const queue = (name: string) => scheduler.runBackground(async () => begun.push(name));
  const first = queue("first");
  await pass(999);
  assert.deepEqual(begun, []);
  await pass(1);
  await first;
  silent.resolve();
  await waiting;
  const second = queue("second");
  await pass(299);
  assert.deepEqual(begun, ["first"]);
  await pass(1);
  await second;
});

test("an unslotted job does not shorten the quiet period of a slotted one, nor add to it", async (t) => {
  const { pass } = steadyClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  await scheduler.run(turn, async () => {});
  const background = scheduler.runBackground(async () => begun.push("background"));
  await pass(150);
  await scheduler.runUnslotted(async () => {});
  await pass(149);
  assert.deepEqual(begun, []);
  await pass(1);
  await background;
});
