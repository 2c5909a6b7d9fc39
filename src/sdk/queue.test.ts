import assert from "node:assert/strict";
import { test } from "node:test";
import { Queue } from "./queue.ts";

test("items are delivered in order, before the end or the error", async () => {
  const queue = new Queue<string>();
  const first = queue.next();
  queue.push("a", 1);
  queue.push("b", 2);
  assert.deepEqual(await first, { done: false, value: "a" });
  assert.equal(queue.sizeBytes, 2);
  queue.fail(new Error("over"));
  queue.push("too late", 1);
  assert.deepEqual(await queue.next(), { done: false, value: "b" });
  await assert.rejects(queue.next(), /over/);
});

test("a waiting reader gets the end; the pushing side is told what was taken", async () => {
  let takenTimes = 0;
  const queue = new Queue<number>(() => takenTimes++);
  const seen: number[] = [];
  const reading = (async () => {
    for await (const each of queue) seen.push(each);
  })();
  queue.push(1, 1);
  queue.push(2, 1);
  queue.end();
  await reading;
  assert.deepEqual([seen, takenTimes, queue.sizeBytes], [[1, 2], 2, 0]);
});
