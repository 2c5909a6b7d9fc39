/** The order in which the messages of WebSockets are handled, and who is read meanwhile. */
import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { TeamTurns } from "../access/team-turns.ts";
import { largeMessageBytes, MessageLine } from "./message-line.ts";

/** Lines of WebSockets over one server's turns; `handled` has the messages' names, and `calls` the holds and releases. */
function lines() {
  const turns = new TeamTurns();
  const [handled, calls]: [string[], string[]] = [[], []];
  const open = (name: string, teamId = "red") => {
    const transport = Object.assign(new EventEmitter(), { closed: false });
    const line = new MessageLine({
      ...{ turns, teamId, ending: transport },
      handle: ({ data }) => handled.push(`${name}${data[0]}`),
      hold: () => calls.push(`hold ${name}`),
      release: () => calls.push(`release ${name}`),
    });
    const take = (number: number, length = 1) => line.take({ data: Buffer.alloc(length, number), isBinary: false });
    return { line, transport, take };
  };
  return { turns, handled, calls, open };
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
