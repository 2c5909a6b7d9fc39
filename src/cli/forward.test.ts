/** The words of `capsule forward`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { UsageError } from "./command.ts";
import { forwardingOf } from "./forward.ts";

test("a word is [BIND:][LOCAL:]PORT", () => {
  const read = (text: string) => Object.values(forwardingOf(text)).join(" ");
  assert.equal(read("80"), "127.0.0.1 80 80");
  assert.equal(read("8080:80"), "127.0.0.1 8080 80");
  assert.equal(read("0:80"), "127.0.0.1 0 80");
  assert.equal(read("0.0.0.0:80"), "0.0.0.0 80 80");
  assert.equal(read("localhost:8080:80"), "localhost 8080 80");
  assert.equal(read("[::1]:8080:80"), "::1 8080 80");
  for (const odd of ["", "0", "65536", "x", ":80", "80:", "a:b:80", "1:2:3:80", "65536:80:"]) {
    assert.throws(() => forwardingOf(odd), UsageError, odd);
  }
});
