/** The order in which the messages of WebSockets are handled, and who is read meanwhile. */
import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { MessageTurns } from "../access/message-turns.ts";
import { TeamTurns } from "../access/team-turns.ts";
import { largeMessageBytes, MessageLine } from "./message-line.ts";

/** Lines of WebSockets over one server's turns; `handled` has the messages' names, and `calls` the holds and releases. */
function lines() {
  const turns = new TeamTurns();
  const messageTurns = new MessageTurns();
  const [handled, calls]: [string[], string[]] = [[], []];
  const open = (name: string, teamId = "red") => {
    const transport = Object.assign(new EventEmitter(), { closed: false });
    const line = new MessageLine({
      ...{ turns, messageTurns, teamId, ending: transport },
      handle: ({ data }) => handled.push(`${name}${data[0]}`),
      hold: () => calls.push(`hold ${name}`),
      release: () => calls.push(`release ${name}`),
    });
    const take = (number: number, length = 1) => line.take({ data: Buffer.alloc(length, number), isBinary: false });
    return { line, transport, take };
  };
  return { turns, messageTurns, handled, calls, open };
}

test("in one turn of the loop one large message of a team is handled, of whichever WebSocket", async (t) => {
  const { pass } = steadyClock(t);
  const { handled, open } = lines();
  const reds = Array.from({ length: 8 }, (_, index) => open(`r${index}.`));
  for (const { take } of reds) take(1, 1_200_000);
  open("b.", "blue").take(1, 1_200_000);
  assert.deepEqual(handled, ["r0.1", "b.1"]);
  for (let count = 1; count < reds.length; count++) {
    await pass(17);
    assert.equal(handled.length, count + 1, "18 pieces of 64 KiB are a pause of 18 ms");
    await pass(1);
    assert.deepEqual(
      handled.slice(2),
      Array.from({ length: count }, (_, index) => `r${index + 1}.1`),
    );
  }
});

test("messages of a WebSocket stay in order, one in a turn, and its client is read when all are handled", async (t) => {
  const { pass } = steadyClock(t);
  const { handled, calls, open } = lines();
  const [first, second] = [open("a"), open("b")];
  first.take(1, 1 << 20);
  assert.deepEqual([handled, calls], [["a1"], []], "a message that need not wait holds nothing up");
  second.take(1);
  second.take(2, largeMessageBytes);
  second.take(3);
  second.take(4);
  first.take(2);
  assert.deepEqual([handled, calls], [["a1", "b1", "a2"], ["hold b"]]);
  await pass(16);
  assert.deepEqual([handled.slice(3), calls], [["b2"], ["hold b"]]);
  await nextTurn();
  assert.deepEqual([handled.slice(4), calls], [["b3"], ["hold b"]]);
  await nextTurn();
  assert.deepEqual([handled.slice(5), calls], [["b4"], ["hold b", "release b"]]);
  second.take(5);
  assert.equal(handled.at(-1), "b5");
});

test("messages that wait while their client closes in order are handled, one in a turn, before the end", async () => {
  const { handled, open } = lines();
  open("a").take(1, 1 << 20);
  const { line, take, transport } = open("b");
  take(1, 1 << 20);
  for (const number of [2, 3]) take(number);
  transport.emit("close");
  let isDone = false;
  line.finish(() => {
    isDone = true;
  });
  for (const expected of [["b1"], ["b1", "b2"], ["b1", "b2", "b3"]]) {
    assert.deepEqual([handled.slice(1), isDone], [expected, false]);
    await nextTurn();
  }
  assert.deepEqual([handled.length, isDone], [4, true]);
});

test("a message that waits while its WebSocket is closed by the server, or broken off, is never handled", async (t) => {
  const { pass } = steadyClock(t);
  const { turns, handled, calls, open } = lines();
  const [first, closed, gone] = [open("a"), open("b"), open("c")];
  for (const { take } of [first, closed, gone]) take(1, 1 << 20);
  closed.take(2);
  closed.line.close();
  assert.equal(turns.size, 2);
  gone.transport.emit("close");
  assert.equal(turns.size, 1);
  await pass(16);
  await pass(16);
  assert.deepEqual([handled, calls, turns.size], [["a1"], ["hold b", "hold c"], 0]);
});

test("in one turn of the loop 16 small texts of a team are handled, over all its WebSockets; further ones wait, each unless its client leaves", async () => {
  const { messageTurns, handled, calls, open } = lines();
  const reds = Array.from({ length: 40 }, (_, index) => open(`r${index}.`));
  for (const { take } of reds) take(1);
  open("b.", "blue").take(1);
  reds[39]?.take(2);
  const first = (count: number) => Array.from({ length: count }, (_, index) => `r${index}.1`);
  assert.deepEqual([handled, messageTurns.size], [[...first(16), "b.1"], 24]);
  assert.equal(calls[0], "hold r16.");
  handled.pop();
  const [gone] = reds.splice(20, 1);
  gone?.transport.emit("close");
  assert.equal(messageTurns.size, 23, "a client that has left waits no longer");
  await nextTurn();
  assert.deepEqual(handled, first(33).toSpliced(20, 1));
  await nextTurn();
  await nextTurn();
  assert.deepEqual(handled, [...first(40).toSpliced(20, 1), "r39.2"]);
  assert.deepEqual([messageTurns.size, calls.length], [0, 24 + 23], "all but the one that left are read again");
});

test("messages of many clients that close in order are handled 16 in a turn", async () => {
  const { handled, open } = lines();
  for (let index = 0; index < 40; index++) open("x").take(1);
  handled.length = 0;
  const closing = Array.from({ length: 40 }, (_, index) => open(`${index}.`));
  for (const { line, take, transport } of closing) {
    take(1);
    transport.emit("close");
    line.finish(() => {});
  }
  const counts = [];
  while (handled.filter((name) => name !== "x1").length < 40) {
    const before = handled.length;
    await nextTurn();
    counts.push(handled.length - before);
  }
  assert.deepEqual(counts, [16, 16, 16, 16]);
});
