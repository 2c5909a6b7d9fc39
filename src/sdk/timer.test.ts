import assert from "node:assert/strict";
import { test } from "node:test";
import { after } from "./timer.ts";

const dayMs = 86_400_000;

test("a timer fires when it is due, also after 24 days, and never at 0, at Infinity or when cancelled", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let times = 0;
  const act = () => times++;
  for (const ms of [0, Number.POSITIVE_INFINITY]) after(ms, act);
  after(60 * dayMs, act);
  after(dayMs, act)();
  const live = (days: number) => {
    for (let day = 0; day < days; day++) t.mock.timers.tick(dayMs);
  };
  live(59);
  assert.equal(times, 0);
  live(3); // the mocked clock moves by whole days, also between the steps
  assert.equal(times, 1);
  live(100);
  assert.equal(times, 1);
});
