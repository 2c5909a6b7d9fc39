import assert from "node:assert/strict";
import { test } from "node:test";
import { connectionRows, type Decision } from "./connections.ts";

const denied: Decision = { at: "2026-11-28T12:00:00.000Z", verdict: "denied", reason: "not listed", count: 2 };

function entryOf(decision: Partial<Decision>): string | undefined {
  return connectionRows([{ ...denied, ...decision }])[0]?.entry;
}

test("what the policy has denied has the entry that would let it through, with its port unless that is the web's", () => {
  assert.equal(entryOf({ host: "pypi.org", port: 443, address: "1.2.3.4" }), "pypi.org");
  assert.equal(entryOf({ host: "pypi.org", port: 80 }), "pypi.org");
  assert.equal(entryOf({ host: "pypi.org" }), "pypi.org", "a question to DNS");
  assert.equal(entryOf({ host: "db.example", port: 5432 }), "db.example:5432");
  assert.equal(entryOf({ address: "1.2.3.4", port: 443 }), "1.2.3.4:443");
  assert.equal(entryOf({ host: "a.example", reason: "egress none" }), "a.example");
});

test("what no entry opens, and what was let through, has none", () => {
  for (const reason of ["reserved", "deny", "limit"]) assert.equal(entryOf({ host: "a.example", reason }), undefined);
  assert.equal(entryOf({ host: "a.example", verdict: "allowed", reason: "" }), undefined);
  assert.equal(entryOf({ host: "a.example", verdict: "failed", reason: "refused" }), undefined);
  assert.equal(entryOf({}), undefined);
});

test("the newest comes first, under its name", () => {
  const recent = [
    { ...denied, address: "1.2.3.4", port: 22 },
    { ...denied, host: "a.example", address: "1.2.3.4", port: 443 },
  ];
  const rows = connectionRows(recent).map(({ destination, address, reason }) => [destination, address, reason]);
  assert.deepEqual(rows, [
    ["a.example:443", "1.2.3.4", "not allowed by the policy"],
    ["1.2.3.4:22", undefined, "not allowed by the policy"],
  ]);
});
