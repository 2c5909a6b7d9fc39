import assert from "node:assert/strict";
import { test } from "node:test";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { inOrder, type Order } from "./capsule-orders.ts";

const capsule = (id: string, name: string | null, status: string, lastActiveAt: string | null, memoryMb: number) =>
  ({ id, name, status, template: "minimal", createdAt: "2026-01-02T00:00:00Z", lastActiveAt, memoryMb }) as CapsuleInfo;

test("capsules are listed in each order; equal ones stay newest first, nameless ones are last", () => {
  const newestFirst = [
    capsule("d", null, "running", null, 512),
    capsule("c", "web-10", "paused", "2026-01-03T00:00:00Z", 512),
    capsule("b", "web-9", "running", "2026-01-01T00:00:00Z", 1_024),
    capsule("a", null, "paused", "2026-01-04T00:00:00Z", 256),
  ];
  const ids = (order: Order) =>
    inOrder(newestFirst, order)
      .map(({ id }) => id)
      .join("");
  assert.equal(ids("Newest first"), "dcba");
  assert.equal(ids("By name"), "bcda");
  assert.equal(ids("By status"), "cadb");
  assert.equal(ids("By template"), "dcba");
  assert.equal(ids("Last active first"), "acdb");
  assert.equal(ids("Largest memory first"), "bdca");
});
