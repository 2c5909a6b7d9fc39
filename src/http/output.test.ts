import assert from "node:assert/strict";
import { isUtf8 } from "node:buffer";
import { test } from "node:test";
import fc from "fast-check";
import { incompleteTail, Output, OutputBudget, OutputBudgets } from "./output.ts";

const ample = new OutputBudget(2 ** 40);

test("property: text cut by the limit is valid text, and at most three bytes shorter than the limit", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.nat(200), fc.integer({ min: 1, max: 9 }), (text, limit, step) => {
      const bytes = Buffer.from(text);
      const output = new Output(limit, ample);
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

test("chunks are copied, so their buffer can be reused", () => {
  const output = new Output(100, ample);
  const chunk = Buffer.from("one");
  output.add("stderr", chunk);
  chunk.fill("x");
  assert.equal(output.encode().stderr, "one");
});

test("a million chunks of one byte cost about a million bytes", () => {
  const output = new Output(2 ** 20, ample);
  const chunk = Buffer.from("x");
  const inUse = () => process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers;
  const before = inUse();
  for (let i = 0; i < 2 ** 20; i++) output.add("stdout", chunk);
  assert.ok(inUse() - before < 32 * 2 ** 20);
  assert.equal(output.encode().stdout.length, 2 ** 20);
});

test("all outputs together stay within the budget, and give their bytes back", () => {
  const budget = new OutputBudget(10);
  const [first, second, third] = [new Output(100, budget), new Output(100, budget), new Output(100, budget)];
  first.add("stdout", Buffer.from("12345678"));
  second.add("stderr", Buffer.from("abcd"));
  second.add("stderr", Buffer.from("e"));
  assert.deepEqual(second.encode(), { stdout: "", stderr: "ab", encoding: "utf-8", truncated: true });
  first.release();
  second.release();
  third.add("stdout", Buffer.from("1234567890"));
  assert.deepEqual(third.encode(), { stdout: "1234567890", stderr: "", encoding: "utf-8" });
});

test("encoded output counts until its release; after that no output is kept", () => {
  const budget = new OutputBudget(10);
  const [first, second] = [new Output(100, budget), new Output(100, budget)];
  first.add("stdout", Buffer.from("1234567890"));
  assert.equal(first.encode().stdout, "1234567890");
  second.add("stdout", Buffer.from("x"));
  assert.deepEqual(second.encode(), { stdout: "", stderr: "", encoding: "utf-8", truncated: true });
  for (let i = 0; i < 3; i++) first.release();
  first.add("stderr", Buffer.from("late"));
  assert.equal(budget.take(100), 10);
});

test("a team has its own budget within that of all teams", () => {
  const budgets = new OutputBudgets({ teamBytes: 6, allBytes: 10 });
  assert.equal(budgets.of("red").take(100), 6);
  assert.equal(budgets.of("red").take(1), 0);
  assert.equal(budgets.of("blue").take(100), 4);
  budgets.of("red").giveBack(6);
  assert.equal(budgets.of("blue").take(100), 2);
  assert.equal(budgets.of("red").take(100), 4);
});
