import assert from "node:assert/strict";
import { test } from "node:test";
import { changeOfPairs, pairsIn, textOfPairs } from "./pairs.ts";

test("pairs are lines, split at the first =", () => {
  const pairs = { env: "test", url: "a=b", empty: "" };
  assert.equal(textOfPairs(pairs), "env=test\nurl=a=b\nempty=");
  assert.deepEqual(pairsIn("env=test\n\nurl=a=b\nempty=\n", "Labels"), pairs);
  for (const text of ["env", "=x", "a=1\na=2"]) assert.throws(() => pairsIn(text, "Labels"), /^Error: Labels: /);
});

test("a change names what is new, other or gone", () => {
  assert.deepEqual(changeOfPairs({ a: "1", b: "2", c: "3" }, { a: "1", b: "9", d: "4" }), { c: null, b: "9", d: "4" });
  assert.equal(changeOfPairs({ a: "1" }, { a: "1" }), undefined);
});
