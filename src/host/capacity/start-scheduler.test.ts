/** The order in which VMs are started when there are fewer slots than requests. */
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { StartScheduler } from "./start-scheduler.ts";

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
    void this.#scheduler[discipline](() => {
      this.begun.push(name);
      return promise;
    });
  }

  async end(name: string): Promise<void> {
    this.#ends.get(name)?.();
    await new Promise(setImmediate);
  }
}

/** A clock for timers and performance.now that moves only by `pass`. */
function fakeClock(t: TestContext) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let nowMs = 1_000;
  t.mock.method(performance, "now", () => nowMs);
  return async (ms: number) => {
    nowMs += ms;
    t.mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
}

test("jobs beyond the number of slots start in order of arrival", async () => {
  const jobs = new Jobs(2);
  for (const name of ["a", "b", "c", "d"]) jobs.start(name, "run");
  await new Promise(setImmediate);
  assert.deepEqual(jobs.begun, ["a", "b"]);
  await jobs.end("b");
  await jobs.end("a");
  assert.deepEqual(jobs.begun, ["a", "b", "c", "d"]);
});

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
  await assert.rejects(scheduler.run(fail), /no/);
  await assert.rejects(scheduler.runBackground(fail), /no/);
  assert.equal(await scheduler.run(async () => 1), 1);
  assert.equal(await scheduler.runBackground(async () => 2), 2);
});

test("an aborted job leaves the line, and the jobs behind it move up", async () => {
  const scheduler = new StartScheduler(1);
  const begun: string[] = [];
  const first = Promise.withResolvers<void>();
  const running = scheduler.run(() => first.promise);
  const abort = new AbortController();
  const aborted = scheduler.run(async () => begun.push("aborted"), abort.signal);
  const behind = scheduler.run(async () => begun.push("behind"));
  abort.abort(new Error("aborted"));
  await assert.rejects(aborted, /aborted/);
  first.resolve();
  await Promise.all([running, behind]);
  assert.deepEqual(begun, ["behind"]);
  await assert.rejects(
    scheduler.run(() => Promise.reject(new Error("no")), abort.signal),
    /no/,
    "with a free slot the job is started, and checks its signal itself",
  );
});

test("a job that is aborted in the moment in which it gets a slot gives it back", async () => {
  const scheduler = new StartScheduler(1);
  const first = Promise.withResolvers<void>();
  const running = scheduler.run(() => first.promise);
  const abort = new AbortController();
  const called = scheduler.run(async () => "worked", abort.signal);
  void running.then(() => abort.abort(new Error("aborted")));
  first.resolve();
  await called.catch((error: Error) => assert.equal(error.message, "aborted"));
  assert.equal(await scheduler.run(async () => "next"), "next");
});

test("an aborted background job does not hold up the next one", async () => {
  const scheduler = new StartScheduler(1);
  const slotted = Promise.withResolvers<void>();
  const running = scheduler.run(() => slotted.promise);
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
  const pass = fakeClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  await scheduler.run(async () => {});
  const background = scheduler.runBackground(async () => begun.push("background"));
  await pass(299);
  await scheduler.run(async () => {}); // the period begins anew
  await pass(299);
  assert.deepEqual(begun, []);
  await pass(1);
  await background;
  assert.deepEqual(begun, ["background"]);
});

test("background jobs wait for unslotted jobs and for the quiet period after them, also when they fail", async (t) => {
  const pass = fakeClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  const works = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
  const unslotted = works.map(({ promise }) => scheduler.runUnslotted(() => promise));
  const background = scheduler.runBackground(async () => begun.push("background"));
  assert.equal(await scheduler.runUnslotted(async () => 1), 1, "more than there are slots");
  works[0].resolve();
  await unslotted[0];
  await pass(1_000);
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

test("an unslotted job does not shorten the quiet period of a slotted one, nor add to it", async (t) => {
  const pass = fakeClock(t);
  const scheduler = new StartScheduler(1, quiet);
  const begun: string[] = [];
  await scheduler.run(async () => {});
  const background = scheduler.runBackground(async () => begun.push("background"));
  await pass(150);
  await scheduler.runUnslotted(async () => {});
  await pass(149);
  assert.deepEqual(begun, []);
  await pass(1);
  await background;
});
