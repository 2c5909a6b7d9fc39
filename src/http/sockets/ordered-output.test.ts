import assert from "node:assert/strict";
import { test } from "node:test";
import { OrderedOutput } from "./ordered-output.ts";

/** A socket that is behind until the test lets it drain. */
class FakeSocket {
  isBehind = false;
  onDrained = () => {};

  onceDrained(callback: () => void): void {
    assert.ok(this.isBehind);
    this.onDrained = callback;
  }
}

test("waiting output keeps its order, is joined by stream, and is sent no faster than the socket takes it", () => {
  const socket = new FakeSocket();
  const sent: string[] = [];
  const output = new OrderedOutput(socket, (channel, bytes) => {
    sent.push(`${channel} ${bytes}`);
    socket.isBehind = true;
  });
  let hasEnded = false;
  for (const [channel, text] of [
    ["stdout", "a"],
    ["stdout", "b"],
    ["stdout", "c"],
    ["stderr", "d"],
    ["stdout", "e"],
  ] as const)
    output.add(channel, Buffer.from(text));
  output.end(() => {
    hasEnded = true;
  });
  const steps: string[][] = [];
  while (!hasEnded) {
    steps.push(sent.splice(0));
    socket.isBehind = false;
    socket.onDrained();
  }
  assert.deepEqual(steps, [["stdout a"], ["stdout bc"], ["stderr d"]]);
  assert.deepEqual(sent, ["stdout e"]);
});

test("output of one byte of each stream in turn keeps its order while the socket is behind", () => {
  const socket = new FakeSocket();
  const sent: number[] = [];
  const output = new OrderedOutput(socket, (channel, bytes) => {
    assert.equal(bytes.length, 1);
    assert.equal(channel, sent.length % 2 === 0 ? "stdout" : "stderr");
    sent.push(bytes[0] as number);
    socket.isBehind = sent.length % 1_000 === 0;
  });
  socket.isBehind = true;
  const count = 262_144;
  for (let at = 0; at < count; at++) {
    output.add(at % 2 === 0 ? "stdout" : "stderr", Buffer.of(at & 0xff));
    if (at === count / 2) {
      socket.isBehind = false;
      socket.onDrained();
    }
  }
  let hasEnded = false;
  output.end(() => {
    hasEnded = true;
  });
  while (!hasEnded) {
    socket.isBehind = false;
    socket.onDrained();
  }
  assert.ok(Buffer.from(sent).equals(Buffer.from(Array.from({ length: count }, (_, at) => at & 0xff))));
});
