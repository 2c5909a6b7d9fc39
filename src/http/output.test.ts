import assert from "node:assert/strict";
import { isUtf8 } from "node:buffer";
import { test } from "node:test";
import fc from "fast-check";
import { incompleteTail, Output } from "./output.ts";

test("property: text that a limit cuts stays text, and loses at most three bytes more", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.nat(200), fc.integer({ min: 1, max: 9 }), (text, limit, step) => {
      const bytes = Buffer.from(text);
      const output = new Output(limit);
      for (let at = 0; at < bytes.length; at += step) output.add("stdout", bytes.subarray(at, at + step));
      const { stdout, encoding, truncated } = output.encode();
      const kept = Buffer.from(stdout);
      assert.equal(encoding, "utf-8");
      assert.equal(truncated, bytes.length > limit ? true : undefined);
      assert.ok(bytes.subarray(0, kept.length).equals(kept));
      assert.ok(kept.length >= Math.min(limit, bytes.length) - 3 && kept.length <= limit);
    }),
  );
});

test("property: taking the incomplete tail off makes a prefix of text valid, and valid text is left alone", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.nat(100), (text, length) => {
      const bytes = Buffer.from(text);
      assert.equal(incompleteTail(bytes), 0);
      const prefix = bytes.subarray(0, length);
      assert.ok(isUtf8(prefix.subarray(0, prefix.length - incompleteTail(prefix))));
    }),
  );
});

test("the chunks are copied: their buffer may be used again", () => {
  const output = new Output(100);
  const chunk = Buffer.from("one");
  output.add("stderr", chunk);
  chunk.fill("x");
  assert.equal(output.encode().stderr, "one");
});
