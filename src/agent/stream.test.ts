import assert from "node:assert/strict";
import { test } from "node:test";
import { Random } from "../../test/conformance/random.ts";
import { FakeTransport } from "../../test/fakes/stream-transport.ts";
import { limits } from "./protocol.ts";

const blockBytes = 64 * 1024;

test("a million sends of one byte without credit wait in blocks of 64 KiB, and leave in order", (t) => {
  const random = new Random(t);
  const transport = FakeTransport.withoutCredit();
  const content = random.bytes(1_000_000);
  for (let at = 0; at < content.length; at++) transport.stream.send(content.subarray(at, at + 1));
  assert.equal(transport.stream.queuedBytes, content.length);
  let grants = 0;
  for (; transport.stream.queuedBytes > 0; grants++) transport.grant(1 + 2 * random.below(limits.windowBytes / 8));
  // Each frame ends a block or uses up a grant.
  const frames = transport.take();
  assert.ok(frames.length <= content.length / blockBytes + 1 + grants, `${frames.length} frames for ${grants} grants`);
  assert.ok(Buffer.concat(frames).equals(content));
});

test("sends and grants of any sizes in any order: no byte is lost, moved or changed after it was sent", (t) => {
  const random = new Random(t);
  const transport = FakeTransport.withoutCredit();
  const { stream } = transport;
  const source = random.bytes(200_000);
  const sent: Buffer[] = [];
  for (let step = 0; step < 5_000; step++) {
    if (random.below(20) === 0) transport.congested = true;
    if (random.below(3) === 0) transport.decongest();
    for (let sends = random.below(5); sends > 0; sends--) {
      const from = random.below(100_000);
      const bytes = Buffer.from(source.subarray(from, from + random.size(100_000)));
      sent.push(bytes);
      stream.send(bytes);
    }
    const granted = random.size(limits.windowBytes - transport.creditBytes);
    if (granted > 0) transport.grant(granted);
  }
  transport.decongest();
  while (stream.queuedBytes > 0) transport.grant(limits.windowBytes - transport.creditBytes);
  assert.ok(Buffer.concat(transport.take()).equals(Buffer.concat(sent)));
});

test("with credit each send is a frame of its own, and an empty one is none", () => {
  const transport = new FakeTransport();
  for (const length of [1, 0, 2, 0, 3]) assert.equal(transport.stream.send(Buffer.alloc(length)), true);
  assert.deepEqual(
    transport.take().map(({ length }) => length),
    [1, 2, 3],
  );
});
