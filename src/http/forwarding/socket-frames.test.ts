import assert from "node:assert/strict";
import { test } from "node:test";
import { Random } from "../../../test/conformance/random.ts";
import { closeFrame, SocketFrames } from "./socket-frames.ts";

const end = closeFrame(1001, "the server is stopping");

/** A frame as servers send it: without a mask. */
function frame(length: number, opcode = 2): Buffer {
  const long = length > 65_535;
  const header = Buffer.alloc(length < 126 ? 2 : long ? 10 : 4);
  header[0] = 0x80 | opcode;
  header[1] = length < 126 ? length : long ? 127 : 126;
  if (length >= 126 && long) header.writeBigUInt64BE(BigInt(length), 2);
  else if (length >= 126) header.writeUInt16BE(length, 2);
  return Buffer.concat([header, Buffer.alloc(length, 0x88)]); // which would begin a close frame
}

function oneOf(random: Random, numbers: readonly number[]): number {
  return numbers[random.below(numbers.length)] as number;
}

test("a close frame stands behind a whole frame, however the bytes are cut", (t) => {
  const random = new Random(t);
  for (let round = 0; round < 300; round++) {
    const lengths = Array.from({ length: 1 + random.below(6) }, () =>
      oneOf(random, [0, 1, 125, 126, 127, 4_000, 65_535, 65_536]),
    );
    const frames = lengths.map((length) => frame(length));
    const bytes = Buffer.concat(frames);
    const closedAt = random.below(bytes.length + 1);
    const relayed = new SocketFrames();
    const sent: Buffer[] = [];
    let hasClosed = false;
    for (let at = 0; at < bytes.length; ) {
      if (at >= closedAt && !hasClosed) {
        sent.push(relayed.close(end));
        hasClosed = true;
      }
      const size = 1 + random.below(oneOf(random, [1, 3, 200, 70_000]));
      sent.push(relayed.pass(bytes.subarray(at, at + size)));
      at += size;
    }
    if (!hasClosed) sent.push(relayed.close(end));
    const whole = Buffer.concat(sent);
    assert.deepEqual(whole.subarray(whole.length - end.length), end);
    const before = whole.length - end.length;
    const ends = [0];
    for (const each of frames) ends.push((ends.at(-1) as number) + each.length);
    assert.ok(ends.includes(before), `${before} of ${ends.join()}`);
    assert.deepEqual(whole.subarray(0, before), bytes.subarray(0, before));
    assert.equal(relayed.pass(frame(3)).length, 0);
  }
});

test("behind the other host's close frame comes none, and nothing else", () => {
  const relayed = new SocketFrames();
  const last = closeFrame(1000, "");
  assert.deepEqual(relayed.pass(last), last);
  assert.equal(relayed.close(end).length, 0);
  assert.equal(relayed.pass(frame(3)).length, 0);
});

test("a close frame of the other host that is under way is the one that the client gets", () => {
  const relayed = new SocketFrames();
  const last = closeFrame(4401, "the API key is no longer valid");
  const parts = [relayed.pass(last.subarray(0, 9)), relayed.close(end), relayed.pass(last.subarray(9))];
  assert.deepEqual(Buffer.concat(parts), last);
});
