/** The order in which requests of several teams go on to their handlers. */
import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { type Ending, TeamTurns } from "./team-turns.ts";

/** Names of requests in the order in which they went on; the first letter is the owner. */
function line() {
  const turns = new TeamTurns();
  const begun: string[] = [];
  const enter = (name: string, bytes = 0) => {
    const response = Object.assign(new EventEmitter(), { closed: false });
    turns.enter({ name: name[0]! }, response as unknown as Ending, () => begun.push(name), bytes);
    return response;
  };
  return { begun, enter, turns };
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

test("requests whose clients have gone leave the line and never go on", async () => {
  const { begun, enter, turns } = line();
  const waiting = Array.from({ length: 1_001 }, (_, index) => enter(`a${index}`)).slice(1);
  assert.equal(turns.size, 1_000);
  for (const response of waiting.slice(0, -2)) response.emit("close");
  assert.equal(turns.size, 2);
  await nextTurn();
  await nextTurn();
  assert.deepEqual(begun, ["a0", "a999", "a1000"]);
  assert.equal(turns.size, 0);
  assert.equal(
    waiting.reduce((sum, response) => sum + response.listenerCount("close"), 0),
    0,
  );
  enter("b1");
  enter("b2").emit("close");
  assert.equal(turns.size, 0, "a line that is empty is forgotten");
});

test("after a large body its owner's turns come later, a millisecond for each 64 KiB; others' do not", async (t) => {
  const { move, pass } = steadyClock(t);
  const { begun, enter } = line();
  enter("a1", 1 << 20);
  for (const name of ["a2", "a3", "b1", "b2", "b3"]) enter(name);
  for (let turn = 0; turn < 10; turn++) await nextTurn();
  assert.deepEqual(begun, ["a1", "b1", "b2", "b3"]);
  await pass(15);
  assert.equal(begun.length, 4);
  await pass(1);
  await nextTurn();
  assert.deepEqual(begun.slice(4), ["a2", "a3"]);
  enter("b4", 65_536);
  enter("b5");
  move(1);
  enter("c1"); // its own turn ends the pause of b as well
  await nextTurn();
  await nextTurn();
  assert.deepEqual(begun.slice(6), ["b4", "c1", "b5"]);
});

test("all clients without a key share a turn, and their networks take it in turn, the largest first", async () => {
  const { begun, turns } = line();
  const response = Object.assign(new EventEmitter().setMaxListeners(0), { closed: false }) as unknown as Ending;
  const enter = (name: string, networks: string[]) =>
    turns.enter({ name: "", networks }, response, () => begun.push(name));
  enter("first", ["z"]);
  for (let index = 0; index < 100; index++) enter(`one site ${index}`, ["a", `a${index % 50}`]);
  enter("another 0", ["b", "b0"]);
  enter("another 1", ["b", "b0"]);
  enter("another 2", ["b", "b1"]);
  while (turns.size > 0) {
    const { length } = begun;
    await nextTurn();
    assert.equal(begun.length, length + 1);
  }
  assert.deepEqual(begun.slice(0, 8), [
    ...["first", "one site 0", "another 0", "one site 1", "another 2", "one site 2", "another 1", "one site 3"],
  ]);
  assert.equal(begun.length, 104);
});

test("the pause after dear work begins when the work has ended, also where it goes on after the call", async (t) => {
  const { move, pass } = steadyClock(t);
  const { begun, turns, enter } = line();
  const response = Object.assign(new EventEmitter(), { closed: false }) as unknown as Ending;
  const works = {
    a: () => move(50),
    b: async () => {
      await null;
      move(50);
      turns.worked("b", 1 << 20);
    },
  };
  for (const [name, work] of Object.entries(works)) {
    turns.enter({ name }, response, () => void work(), 1 << 20);
    enter(`${name}1`);
    await nextTurn();
    await pass(15);
    assert.equal(begun.length, 0, name);
    await pass(1);
    assert.equal(begun.pop(), `${name}1`);
  }
});
