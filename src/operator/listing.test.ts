import assert from "node:assert/strict";
import { test } from "node:test";
import { printed } from "../../test/printed.ts";
import { printRows } from "./listing.ts";

const rows = [
  ["key-1", "blue\tsky"],
  ["key-22", "red"],
];

test("a list is a table with a head on a terminal, and fields between tabs elsewhere, without control characters", async (t) => {
  const lines = (terminal: object) => printed(t, () => printRows(["KEY", "TEAM"], rows, terminal).then(() => 0));
  assert.deepEqual(await lines({ isTTY: true, columns: 80 }), [
    ["KEY     TEAM"],
    ["key-1   blue\\u0009sky"],
    ["key-22  red"],
  ]);
  assert.deepEqual(await lines({}), [
    ["key-1", "blue\\u0009sky"],
    ["key-22", "red"],
  ]);
});
