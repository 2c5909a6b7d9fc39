import assert from "node:assert/strict";
import { test } from "node:test";
import { AnswerBudget } from "./answer-budget.ts";

const mib = 1 << 20;
const refused = { code: "no_capacity", status: 503 };

test("the teams' answers together are bounded; what is read makes room", () => {
  const budget = new AnswerBudget(100 * mib);
  const [red, blue] = [budget.open("red"), budget.open("blue")];
  red.add(70 * mib);
  blue.add(30 * mib);
  assert.throws(() => blue.add(9 * mib), refused);
  assert.equal(budget.usedBytes, 100 * mib, "a refused addition counts nothing");
  red.release();
  blue.add(9 * mib);
  blue.release();
  assert.equal(budget.usedBytes, 0);
});

test("one team has three quarters at most, and every team 4 MiB of its own", () => {
  const budget = new AnswerBudget(100 * mib);
  const red = budget.open("red");
  red.add(75 * mib);
  assert.throws(() => budget.open("red").add(1), refused);
  budget.open("blue").add(33 * mib);
  assert.throws(() => budget.open("green").add(4 * mib + 1), refused);
  budget.open("green").add(4 * mib);
});

test("a released answer counts nothing, however often it is released", () => {
  const budget = new AnswerBudget(100 * mib);
  const [first, second] = [budget.open("red"), budget.open("red")];
  first.add(mib);
  second.add(mib);
  for (let i = 0; i < 3; i++) first.release();
  first.add(mib);
  assert.equal(budget.usedBytes, mib);
});
