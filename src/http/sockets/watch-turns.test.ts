import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { messagesAtOnce, WatchTurns } from "./watch-turns.ts";

test("in a turn a team sends 64 messages, of each of its sockets in line, and another team its own", async () => {
  const turns = new WatchTurns();
  const sent = new Map<string, number>();
  let inTurn = 0;
  const flood = (teamId: string, name: string) => {
    const send = () => {
      sent.set(name, (sent.get(name) ?? 0) + messagesAtOnce);
      if (teamId === "red") inTurn += messagesAtOnce;
      if (sent.get(name)! < 32) turns.enter(teamId, send);
      return messagesAtOnce;
    };
    turns.enter(teamId, send);
  };
  for (let index = 0; index < 40; index++) flood("red", `red ${index}`);
  flood("blue", "blue");
  for (let turn = 1; turn <= 4 * 5; turn++) {
    inTurn = 0;
    await nextTurn();
    assert.equal(inTurn, 64, `turn ${turn}`);
    assert.equal(sent.get("blue"), 32, "another team's socket is not behind them");
    if (turn === 5) assert.deepEqual(new Set(sent.values()), new Set([8, 32]), "each socket has had its first turn");
  }
  assert.deepEqual(new Set(sent.values()), new Set([32]));
  await nextTurn();
});

test("sockets that have nothing to send take a place each, so that a turn stays short", async () => {
  const turns = new WatchTurns();
  let calls = 0;
  for (let index = 0; index < 100; index++) {
    turns.enter("red", () => {
      calls++;
      return 0;
    });
  }
  await nextTurn();
  assert.equal(calls, 64);
  await nextTurn();
  assert.equal(calls, 100);
});
