import assert from "node:assert/strict";
import { test } from "node:test";
import { Places } from "./places.ts";

const { signal } = new AbortController();

test("who finds no place waits for one that is left, in the order of coming; other teams do not", async () => {
  const places = new Places(2);
  const leaves = [await places.take("red", signal), await places.take("red", signal)];
  const entered: string[] = [];
  const enter = (name: string) =>
    places.take("red", signal).then((leave) => {
      entered.push(name);
      return leave;
    });
  const waiting = [enter("first"), enter("second"), enter("third")];
  (await places.take("blue", signal))();
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
  const places = new Places(1);
  const leave = await places.take("red", signal);
  const impatience = new AbortController();
  const given = places.take("red", impatience.signal);
  const patient = places.take("red", signal);
  const reason = new Error("the client hung up");
  impatience.abort(reason);
  await assert.rejects(given, reason);
  await assert.rejects(places.take("red", impatience.signal), reason);
  leave();
  (await patient)();
  assert.equal(places.size, 0);
});
