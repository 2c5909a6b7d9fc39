import assert from "node:assert/strict";
import { isUtf8 } from "node:buffer";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import fc from "fast-check";
import { AnswerCharge } from "./access/answer-budget.ts";
import { type EncodedText, incompleteTail, Output } from "./output.ts";

setFlagsFromString("--expose-gc");
const collect: () => void = runInNewContext("gc");

const ample = () => new AnswerCharge(() => {});
const textOf = (text: EncodedText): string => JSON.parse(`"${Buffer.concat([...text.pieces()])}"`);

test("property: text cut by the limit is valid text, and at most three bytes shorter than the limit", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.nat(200), fc.integer({ min: 1, max: 9 }), (text, limit, step) => {
      const bytes = Buffer.from(text);
      const output = new Output(limit, ample());
      for (let at = 0; at < bytes.length; at += step) output.add("stdout", bytes.subarray(at, at + step));
      const { stdout, encoding, truncated } = output.encode();
      const kept = Buffer.from(textOf(stdout));
      assert.equal(encoding, "utf-8");
      assert.equal(truncated, bytes.length > limit);
      assert.ok(bytes.subarray(0, kept.length).equals(kept));
      assert.ok(kept.length >= Math.min(limit, bytes.length) - 3 && kept.length <= limit);
    }),
  );
});

test("property: without its incomplete tail a prefix of text is valid; valid text has no such tail", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.nat(100), (text, length) => {
      const bytes = Buffer.from(text);
      assert.equal(incompleteTail(bytes), 0);
      const prefix = bytes.subarray(0, length);
      assert.ok(isUtf8(prefix.subarray(0, prefix.length - incompleteTail(prefix))));
    }),
  );
});

test("partial text loses a character that the kill cut in two; other output keeps every byte", () => {
  const cut = Buffer.from("ok é").subarray(0, -1);
  const encoded = (isPartial: boolean, stderr: Buffer) => {
    const output = new Output(100, ample());
    output.add("stdout", cut);
    output.add("stderr", stderr);
    const { encoding, stdout, truncated } = output.encode(isPartial);
    assert.equal(Buffer.concat([...stdout.pieces()]).length, stdout.sentBytes);
    assert.equal(truncated, false);
    return [encoding, textOf(stdout)];
  };
  const whole = cut.toString("base64");
  assert.deepEqual(encoded(true, cut), ["utf-8", "ok "]);
  assert.deepEqual(encoded(false, cut), ["base64", whole]);
  assert.deepEqual(encoded(true, Buffer.from([0xff])), ["base64", whole]);
});

test("chunks are copied, so their buffer can be reused", () => {
  const output = new Output(100, ample());
  const chunk = Buffer.from("one");
  output.add("stderr", chunk);
  chunk.fill("x");
  assert.equal(textOf(output.encode().stderr), "one");
});

test("a million chunks of one byte cost about a million bytes", () => {
  const output = new Output(2 ** 20, ample());
  const chunk = Buffer.from("x");
  const inUse = () => {
    collect();
    return process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers;
  };
  const before = inUse();
  for (let i = 0; i < 2 ** 20; i++) output.add("stdout", chunk);
  assert.ok(inUse() - before < 32 * 2 ** 20);
  assert.equal(output.encode().stdout.sentBytes, 2 ** 20);
});

test("output is charged as it is sent, and beyond the budget refused, until a release makes room", () => {
  const charges: number[] = [];
  const charge = new AnswerCharge((bytes) => void charges.push(bytes));
  const output = new Output(100, charge);
  output.add("stdout", Buffer.from('\x01"ü'));
  output.add("stderr", Buffer.from([0xff, 0xff, 0xff, 0xff]));
  output.encode();
  output.release();
  output.add("stderr", Buffer.from("late"));
  assert.deepEqual(charges, [6 + 2 + 2, 4, 2, -16]); // base64: 8 + 8
});

test("property: the pieces of an encoded output are its JSON, of the length that was announced", () => {
  const bytes = fc.oneof(
    fc.string({ unit: "binary", maxLength: 20_000, size: "max" }).map((text) => Buffer.from(text)),
    fc.uint8Array({ maxLength: 40_000, size: "max" }).map((array) => Buffer.from(array)),
  );
  fc.assert(
    fc.property(bytes, bytes, fc.nat(60_000), (stdout, stderr, limit) => {
      const output = new Output(limit, ample());
      output.add("stdout", stdout);
      output.add("stderr", stderr);
      const { encoding, ...encoded } = output.encode();
      for (const [text, whole] of [
        [encoded.stdout, stdout],
        [encoded.stderr, stderr],
      ] as const) {
        const json = Buffer.concat([...text.pieces()]);
        assert.equal(json.length, text.sentBytes);
        const sent = Buffer.from(JSON.parse(`"${json}"`), encoding);
        assert.ok(whole.subarray(0, sent.length).equals(sent));
        assert.ok(sent.length >= Math.min(limit, whole.length) - 3);
        assert.equal(`"${json}"`, JSON.stringify(sent.toString(encoding)));
      }
    }),
    { numRuns: 300 },
  );
});
