import assert from "node:assert/strict";
import { test } from "node:test";
import { waitFor, within } from "./wait-for.ts";

const never = new Promise<never>(() => {});

test("a wait returns the first answer that is neither false nor undefined", async () => {
  const answers = [false, undefined, 0];
  assert.equal(await waitFor("a number", () => answers.shift()), 0);
  assert.equal(await waitFor("a text", async () => "text"), "text");
});

test("a wait says at its deadline what it waited for", async () => {
  let asked = 0;
  const counted = () => `the third answer, not the ${asked}`;
  await assert.rejects(
    waitFor(counted, () => ++asked < 0, { deadlineMs: 5 }),
    ({ message }: Error) => message === `not within 5 ms: the third answer, not the ${asked}`,
  );
  await assert.rejects(
    waitFor("an answer", () => never, { deadlineMs: 5 }),
    /^Error: not within 5 ms: an answer$/,
  );
  await assert.rejects(within("an event", never, { deadlineMs: 5 }), /^Error: not within 5 ms: an event$/);
});

test("a process that was held up past the deadline asks once more", async () => {
  let isTrue = false;
  setImmediate(() => {
    for (const began = performance.now(); performance.now() - began < 20; );
    isTrue = true;
  });
  assert.equal(await waitFor("it", () => isTrue, { deadlineMs: 5 }), true);
});

test("a wait's failure is the condition's own", async () => {
  await assert.rejects(within("it", Promise.reject(new Error("its own"))), /its own/);
  await assert.rejects(
    waitFor("it", () => {
      throw new Error("its own");
    }),
    /its own/,
  );
});

test("mocked timers and a mocked clock do not hold up a wait", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval", "setImmediate", "Date"] });
  t.mock.method(performance, "now", () => 0);
  let asked = 0;
  await waitFor("the third time", () => ++asked === 3);
  await assert.rejects(
    waitFor("it", () => false, { deadlineMs: 5 }),
    /not within/,
  );
});
