import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { capsuleTabs, hrefOf, parseRoute, type Route, tokenIn } from "./route.ts";

const text = fc.string({ minLength: 1, unit: "binary" }).filter((each) => each.isWellFormed());
const routes: fc.Arbitrary<Route> = fc.oneof(
  fc
    .constantFrom("capsules" as const, "templates" as const, "keys" as const, "usage" as const)
    .map((page) => ({ page })),
  fc.tuple(text, fc.constantFrom(...capsuleTabs)).map(([id, tab]) => ({ page: "capsule" as const, id, tab })),
  text.map((capsule) => ({ page: "audit" as const, capsule })),
  fc.constant({ page: "audit" as const }),
);

test("every route survives a round trip through its address", () => {
  fc.assert(fc.property(routes, (route) => assert.deepEqual(parseRoute(hrefOf(route)), route)));
});

test("any unknown address is the first page", () => {
  for (const hash of ["", "#", "#/", "#/nothing/here", "#/%", "#token=x"]) {
    assert.deepEqual(parseRoute(hash), { page: "capsules" }, hash);
  }
  assert.deepEqual(parseRoute("#/capsules/cl-a/nothing"), { page: "capsule", id: "cl-a", tab: "terminal" });
});

test("a one-time link's token is found, with a slash and without", () => {
  assert.equal(tokenIn("#token=abc"), "abc");
  assert.equal(tokenIn("#/token=abc"), "abc");
  assert.equal(tokenIn("#token="), undefined);
  assert.equal(tokenIn("#/capsules"), undefined);
});
