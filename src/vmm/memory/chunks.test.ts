import assert from "node:assert/strict";
import { test } from "node:test";
import { giveBackChunk, takeChunk } from "./chunks.ts";

test("a chunk that was given back is taken again, and few are kept", () => {
  const taken = Array.from({ length: 5 }, takeChunk);
  assert.equal(new Set(taken).size, taken.length);
  for (const chunk of taken) giveBackChunk(chunk);
  const again = Array.from({ length: 5 }, takeChunk);
  assert.equal(again.filter((chunk) => taken.includes(chunk)).length, 2);
  for (const chunk of again) giveBackChunk(chunk);
});
