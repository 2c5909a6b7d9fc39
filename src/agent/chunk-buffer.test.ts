import assert from "node:assert/strict";
import { test } from "node:test";
import { Random } from "../../test/conformance/random.ts";
import { ChunkBuffer } from "./chunk-buffer.ts";

test("take returns the added bytes for any chunks, and empties the buffer", (t) => {
  const random = new Random(t);
  const bytes = new ChunkBuffer();
  assert.equal(bytes.take().length, 0);
  for (let round = 0; round < 50; round++) {
    const most = 2 ** (1 + random.below(20));
    const chunks = Array.from({ length: random.below(30) }, () => random.bytes(random.below(most)));
    const expected = Buffer.concat(chunks);
    for (const chunk of chunks) {
      bytes.add(chunk);
      chunk.fill(0); // it is ours no more
    }
    assert.equal(bytes.length, expected.length);
    assert.ok(bytes.take().equals(expected));
    assert.equal(bytes.length, 0);
  }
});

test("many single bytes are collected in few blocks", () => {
  const bytes = new ChunkBuffer();
  const one = Buffer.of(7);
  const counted = Buffer.allocUnsafeSlow;
  let made = 0;
  Buffer.allocUnsafeSlow = (size) => {
    made++;
    return counted(size);
  };
  try {
    for (let each = 0; each < 1 << 20; each++) bytes.add(one);
  } finally {
    Buffer.allocUnsafeSlow = counted;
  }
  assert.ok(made < 20, `${made} pieces`);
  assert.ok(bytes.take().equals(Buffer.alloc(1 << 20, 7)));
});
