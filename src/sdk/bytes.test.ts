import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { fromBase64, toBase64 } from "./bytes.ts";

test("base64 is made of bytes of each length, and of a part of a buffer, without a string of them", (t) => {
  const btoa = t.mock.method(globalThis, "btoa");
  for (let length = 0; length < 100; length++) {
    const bytes = randomBytes(length + 1).subarray(1);
    assert.equal(toBase64(bytes), bytes.toString("base64"));
    assert.deepEqual(Buffer.from(fromBase64(toBase64(bytes))), bytes);
  }
  const large = randomBytes(1_000_000);
  assert.equal(toBase64(large), large.toString("base64"));
  assert.equal(btoa.mock.callCount(), 0);
});
