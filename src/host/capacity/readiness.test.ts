import assert from "node:assert/strict";
import { test } from "node:test";
import { Readiness } from "./readiness.ts";

test("all obstacles are named, a failed check among them, and measured once a second", async () => {
  let nowMs = 0;
  let measured = 0;
  const isFull = async () => {
    measured += 1;
    return measured === 1 ? ["the disk is full"] : [];
  };
  const isGone = () => Promise.reject(new Error("the data folder is gone"));
  const readiness = new Readiness([isFull, isGone], () => nowMs);
  assert.deepEqual(await readiness.reasons(), ["the disk is full", "the data folder is gone"]);
  nowMs = 999;
  await readiness.reasons();
  assert.equal(measured, 1);
  nowMs = 1_000;
  assert.deepEqual(await readiness.reasons(), ["the data folder is gone"]);
});
