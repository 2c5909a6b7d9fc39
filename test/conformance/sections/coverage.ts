/** Runs last (see suite.test.ts): no endpoint and no error of the specification is without a test that has passed. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { testsOf } from "../conforms.ts";
import { rows } from "../specification.ts";

test("every endpoint and every row of the error table has a test", () => {
  assert.deepEqual(
    rows.filter((row) => testsOf(row).length === 0),
    [],
    "rows of the specification without a test that passed",
  );
});
