import assert from "node:assert/strict";
import { test } from "node:test";
import { nearest } from "./nearest.ts";

test("a misspelled name means the nearest, and a foreign one none", () => {
  const names = ["create", "exec", "pause", "resume", "rm"];
  assert.deepEqual(
    ["craete", "exce", "pasue", "resum", "mr", "zzzzzz", ""].map((word) => nearest(word, names)),
    ["create", "exec", "pause", "resume", "rm", undefined, undefined],
  );
});
