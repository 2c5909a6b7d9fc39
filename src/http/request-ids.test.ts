import assert from "node:assert/strict";
import { test } from "node:test";
import { requestIds } from "./request-ids.ts";

test("every request has a name of its own, of 32 hexadecimal digits", () => {
  const [next, ofAnother] = [requestIds(), requestIds()];
  const ids = Array.from({ length: 1_000 }, () => [next(), ofAnother()]).flat();
  for (const id of ids) assert.match(id, /^[0-9a-f]{32}$/);
  assert.equal(new Set(ids).size, 2_000);
});
