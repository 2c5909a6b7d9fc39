/** Bytes to outside: how many writes a peer that takes nothing is given, and what it gets when it takes. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Outflow } from "./outflow.ts";

function slowPeer() {
  const [got, takes, taken]: [Buffer[], (() => void)[], number[]] = [[], [], []];
  let hasEnded = false;
  const peer = {
    write: (bytes: Uint8Array, take: () => void) => {
      assert.ok(!hasEnded);
      got.push(Buffer.from(bytes));
      takes.push(take);
    },
    end: () => {
      hasEnded = true;
    },
  };
  const outflow = new Outflow(peer, (bytes) => taken.push(bytes));
  return { outflow, got, takes, taken, hasEnded: () => hasEnded };
}

test("a peer that takes nothing is given one write, however many frames come", () => {
  const { outflow, got, takes, taken, hasEnded } = slowPeer();
  const sent = Buffer.from(Array.from({ length: 200_000 }, (_, at) => at & 255));
  for (const byte of sent) outflow.write(Buffer.of(byte));
  outflow.end();
  assert.deepEqual([got.length, outflow.unwrittenBytes], [1, sent.length]);
  while (takes.length > 0) takes.shift()!();
  assert.ok(Buffer.concat(got).equals(sent));
  assert.ok(got.length < 10, `${got.length} writes`);
  assert.deepEqual(
    [taken.reduce((sum, bytes) => sum + bytes), outflow.unwrittenBytes, hasEnded()],
    [sent.length, 0, true],
  );
});

test("the end follows at once where nothing waits", () => {
  const { outflow, hasEnded } = slowPeer();
  outflow.end();
  assert.ok(hasEnded());
});
