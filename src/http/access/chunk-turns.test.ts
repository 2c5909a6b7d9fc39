import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { ChunkTurns, chunkMinBytes, turnBytes } from "./chunk-turns.ts";

/** Chunks in the order in which they were passed on; the first letter is the team. */
function line() {
  const turns = new ChunkTurns();
  const passed: string[] = [];
  const enter = (name: string, bytes = turnBytes) => {
    const response = Object.assign(new EventEmitter(), { closed: false });
    const turn = turns.enter(name[0]!, bytes, response);
    if (turn === undefined) passed.push(name);
    else void turn.then(() => passed.push(name));
    return response;
  };
  return { turns, passed, enter };
}

test("chunks of a team that exceed its share of a turn wait for the next ones, in order; another team's do not", async () => {
  const { turns, passed, enter } = line();
  for (const name of ["a1", "a2"]) enter(name, turnBytes / 2);
  for (const name of ["a3", "a4", "a5"]) enter(name);
  enter("b1");
  assert.deepEqual([passed, turns.size], [["a1", "a2", "b1"], 3]);
  for (const name of ["a3", "a4", "a5"]) {
    await nextTurn();
    enter("b2");
    assert.deepEqual(passed.slice(-2), [name, "b2"]);
  }
  assert.equal(turns.size, 0);
});

test("an upload of one chunk in a turn never waits, and a callback follows each share alone", async (t) => {
  const { passed, enter } = line();
  const callbacks = t.mock.method(globalThis, "setImmediate").mock;
  for (let turn = 1; turn <= 64; turn++) {
    enter("a", 65_536);
    assert.equal(passed.length, turn);
    await nextTurn();
  }
  assert.equal(callbacks.callCount(), (64 * 65_536) / turnBytes);
});

test("a chunk of a byte counts as 16 KiB", async () => {
  const { turns, passed, enter } = line();
  for (let index = 0; index < 1_000; index++) enter(`a${index}`, 1);
  const most = turnBytes / chunkMinBytes;
  assert.equal(passed.length, most);
  await nextTurn();
  assert.deepEqual([passed.length, turns.size], [2 * most, 1_000 - 2 * most]);
  assert.deepEqual(
    passed,
    Array.from({ length: 2 * most }, (_, index) => `a${index}`),
  );
});

test("a chunk whose client leaves is passed on at once, and takes no share", async () => {
  const { turns, passed, enter } = line();
  enter("a1");
  const [gone, there] = [enter("a2"), enter("a3")];
  gone.closed = true;
  gone.emit("close");
  await Promise.resolve();
  assert.deepEqual([passed, turns.size], [["a1", "a2"], 1]);
  await nextTurn();
  assert.deepEqual([passed, turns.size], [["a1", "a2", "a3"], 0]);
  assert.deepEqual([gone.listenerCount("close"), there.listenerCount("close")], [0, 0]);
});
