/** The list of a capsule's last decisions, and the check of one that another process has written. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { RecentDecisions } from "./recent-decisions.ts";
import { readDecision } from "./untrusted.ts";

const at = "2026-11-28T12:00:00.000Z";
const denied = (port: number, count = 1) =>
  ({ at, verdict: "denied", reason: "not listed", host: "a.example", port, count }) as const;

test("one that comes again is counted and moves to the end; the oldest beyond 100 go", () => {
  const recent = new RecentDecisions();
  for (let port = 1; port <= 100; port++) recent.add(denied(port));
  recent.add({ ...denied(1, 4), at: "2026-11-28T12:00:01.000Z" });
  recent.add(denied(101));
  const ports = recent.list().map(({ port }) => port);
  assert.deepEqual(ports, [...Array.from({ length: 98 }, (_, index) => index + 3), 1, 101]);
  assert.deepEqual(recent.list().at(-2), { ...denied(1, 5), at: "2026-11-28T12:00:01.000Z" });
  recent.add(denied(1, Number.MAX_SAFE_INTEGER));
  assert.equal(recent.list().at(-1)?.count, Number.MAX_SAFE_INTEGER);
  assert.deepEqual([recent.take().length, recent.size], [100, 0]);
});

test("another process's is read with texts of 300 characters, and without fields that are none", () => {
  const long = "x".repeat(1_000);
  const hostile = {
    at: "2026-11-28T12:00:00Z",
    verdict: "failed",
    reason: long,
    host: 7,
    address: long,
    port: "1",
    count: 3,
  };
  assert.deepEqual(readDecision({ ...hostile, junk: long }), {
    ...{ at, verdict: "failed", reason: "x".repeat(300), host: "", address: "x".repeat(300), count: 3 },
  });
  for (const bad of [
    null,
    "text",
    {},
    { ...hostile, verdict: "maybe" },
    { ...hostile, at: "now" },
    { ...hostile, count: 0.5 },
  ])
    assert.equal(readDecision(bad), undefined, JSON.stringify(bad));
});
