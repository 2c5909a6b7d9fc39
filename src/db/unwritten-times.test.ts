/** Times that are written once a second, in parts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { partRows, UnwrittenTimes } from "./unwritten-times.ts";

function thousand() {
  const written: [string, number][][] = [];
  const times = new UnwrittenTimes((part) => void written.push([...part]));
  for (let index = 0; index < 1_000; index++) times.set(`cl-${index}`, index);
  return { written, times };
}

test("1 000 times are written in parts of 100, one in a turn of the loop", async () => {
  const { written, times } = thousand();
  const done = times.flushInParts();
  for (let parts = 1; parts <= 10; parts++) {
    assert.deepEqual([written.length, written.at(-1)?.length], [parts, partRows]);
    await times.flushInParts(); // the next second's does nothing meanwhile
    if (parts === 1) times.set("cl-0", 7);
    if (parts === 2) times.delete("cl-999");
    if (parts < 9) await nextTurn();
    else await done;
    if (parts === 9) break;
  }
  assert.deepEqual([written.length, written.at(-1)?.length], [10, partRows - 1]);
  await times.flushInParts();
  assert.deepEqual(written.slice(10), [[["cl-0", 7]]], "changed after its part");
});

test("the end of the service writes the rest at once, and nothing after it", async () => {
  const { written, times } = thousand();
  const done = times.flushInParts();
  times.flush();
  await done;
  assert.deepEqual(
    written.map(({ length }) => length),
    [100, 900],
  );
});

test("a part that cannot be written stays for the next call", async () => {
  let isFull = true;
  const sizes: number[] = [];
  const times = new UnwrittenTimes(({ size }) => {
    if (isFull) throw new Error("disk full");
    sizes.push(size);
  });
  times.set("cl-1", 1);
  await assert.rejects(times.flushInParts(), /disk full/);
  isFull = false;
  await times.flushInParts();
  assert.deepEqual(sizes, [1]);
});
