/** The order in which requests of several teams go on to their handlers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { TeamTurns } from "./team-turns.ts";

/** Names of requests in the order in which they went on; the first letter is the owner. */
function line() {
  const turns = new TeamTurns();
  const begun: string[] = [];
  const enter = (name: string) => turns.enter(name[0]!, () => begun.push(name));
  return { begun, enter };
}

test("the first request of an owner in a turn goes on at once", () => {
  const { begun, enter } = line();
  for (const name of ["a1", "b1", "c1"]) enter(name);
  assert.deepEqual(begun, ["a1", "b1", "c1"]);
});

test("beside 1 000 requests of one owner, another's go on in the turns in which they came", async () => {
  const { begun, enter } = line();
  for (let index = 1; index <= 1_000; index++) enter(`a${index}`);
  enter("b1");
  assert.deepEqual(begun, ["a1", "b1"]);
  for (let turn = 2; turn <= 10; turn++) {
    await nextTurn();
    enter(`b${turn}`);
    assert.deepEqual(begun.slice(-2), [`a${turn}`, `b${turn}`]);
  }
  while (begun.length < 1_010) {
    const { length } = begun;
    await nextTurn();
    assert.equal(begun.length, length + 1);
  }
  assert.deepEqual(
    begun.filter((name) => name.startsWith("a")),
    Array.from({ length: 1_000 }, (_, index) => `a${index + 1}`),
    "in order of arrival",
  );
});

test("a request that comes while others of its owner wait is behind them", async () => {
  const { begun, enter } = line();
  for (const name of ["a1", "a2", "a3"]) enter(name);
  await nextTurn();
  enter("a4");
  assert.deepEqual(begun, ["a1", "a2"]);
  await nextTurn();
  await nextTurn();
  assert.deepEqual(begun, ["a1", "a2", "a3", "a4"]);
});

test("an owner whose requests have all gone on is forgotten in the next turn", async () => {
  const { begun, enter } = line();
  enter("a1");
  await nextTurn();
  enter("a2");
  assert.deepEqual(begun, ["a1", "a2"]);
});
