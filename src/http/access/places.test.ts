import assert from "node:assert/strict";
import { test } from "node:test";
import { TeamSemaphore } from "./places.ts";

const { signal } = new AbortController();

test("who finds no place waits for one that is left, in the order of coming; other teams do not", async () => {
  const places = new TeamSemaphore(2);
  const leaves = [await places.acquire("red", signal), await places.acquire("red", signal)];
  const entered: string[] = [];
  const enter = (name: string) =>
    places.acquire("red", signal).then((leave) => {
      entered.push(name);
      return leave;
    });
  const waiting = [enter("first"), enter("second"), enter("third")];
  (await places.acquire("blue", signal))();
  assert.deepEqual(entered, []);
  for (let i = 0; i < 3; i++) leaves[0]!(); // once, however often it is said
  const first = await waiting[0]!;
  assert.deepEqual(entered, ["first"]);
  leaves[1]!();
  (await waiting[1]!)();
  first();
  (await waiting[2]!)();
  assert.deepEqual(entered, ["first", "second", "third"]);
  assert.equal(places.size, 0);
});

test("who gives up waiting is passed over, and who has given up before does not wait", async () => {
  const places = new TeamSemaphore(1);
  const leave = await places.acquire("red", signal);
  const impatience = new AbortController();
  const given = places.acquire("red", impatience.signal);
  const patient = places.acquire("red", signal);
  const reason = new Error("the client hung up");
  impatience.abort(reason);
  await assert.rejects(given, reason);
  await assert.rejects(places.acquire("red", impatience.signal), reason);
  leave();
  (await patient)();
  assert.equal(places.size, 0);
});
