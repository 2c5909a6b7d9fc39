import assert from "node:assert/strict";
import { test } from "node:test";
import { InFlightLimiter, TeamSemaphore } from "./in-flight.ts";

const { signal } = new AbortController();

test("a team has a bounded number of requests in progress; other teams are not counted with it", () => {
  const limiter = new InFlightLimiter(2);
  const leave = limiter.enter("red");
  limiter.enter("red");
  assert.throws(() => limiter.enter("red"), { code: "quota_exceeded", retryAfterSec: 1 });
  limiter.enter("blue")();
  assert.deepEqual([limiter.countOf("red"), limiter.countOf("blue")], [2, 0]);
  leave();
  assert.equal(limiter.countOf("red"), 1);
  limiter.enter("red");
});

test("a request waits for a free slot in order of arrival; other teams do not wait", async () => {
  const semaphore = new TeamSemaphore(2);
  const leaves = [await semaphore.acquire("red", signal), await semaphore.acquire("red", signal)];
  const entered: string[] = [];
  const enter = (name: string) =>
    semaphore.acquire("red", signal).then((leave) => {
      entered.push(name);
      return leave;
    });
  const waiting = [enter("first"), enter("second"), enter("third")];
  (await semaphore.acquire("blue", signal))();
  assert.deepEqual(entered, []);
  for (let i = 0; i < 3; i++) leaves[0]!(); // a second call frees nothing
  const first = await waiting[0]!;
  assert.deepEqual(entered, ["first"]);
  leaves[1]!();
  (await waiting[1]!)();
  first();
  (await waiting[2]!)();
  assert.deepEqual(entered, ["first", "second", "third"]);
  assert.equal(semaphore.size, 0);
});

test("an aborted wait is skipped, and an aborted signal does not wait at all", async () => {
  const semaphore = new TeamSemaphore(1);
  const leave = await semaphore.acquire("red", signal);
  const abandoned = new AbortController();
  const given = semaphore.acquire("red", abandoned.signal);
  const patient = semaphore.acquire("red", signal);
  const reason = new Error("the client hung up");
  abandoned.abort(reason);
  await assert.rejects(given, reason);
  await assert.rejects(semaphore.acquire("red", abandoned.signal), reason);
  leave();
  (await patient)();
  assert.equal(semaphore.size, 0);
});
