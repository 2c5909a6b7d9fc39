/** Which listed name has an address: how long answers are kept. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ListedLookups } from "./listed-lookups.ts";
import type { AddressAnswer, Resolved } from "./resolver.ts";

/** Names and what is answered; `asked` counts the questions since the last look. */
function lookups(zone: Record<string, Resolved<AddressAnswer>>) {
  const clock = { nowMs: 0 };
  let count = 0;
  const ask = async (name: string) => {
    count++;
    return zone[name];
  };
  const names = new ListedLookups({ ask, now: () => clock.nowMs });
  const asked = async (address: number) => {
    count = 0;
    const found = await names.nameOf(address, Object.keys(zone));
    return { found, count };
  };
  return { clock, asked };
}

const found = (address: number, ttlSec: number): Resolved<AddressAnswer> => ({ found: [{ address, ttlSec }] });

test("names without an address, and answers without a TTL, are kept for 20 s", async () => {
  const zone = { a: { failure: "no such name" }, b: { failure: "none" }, c: found(3, 0), d: found(4, 30) } as const;
  const { clock, asked } = lookups(zone);
  assert.deepEqual(await asked(4), { found: { name: "d" }, count: 4 });
  clock.nowMs = 19_999;
  assert.deepEqual(await asked(3), { found: { name: "c" }, count: 0 });
  clock.nowMs = 20_000;
  assert.deepEqual(await asked(9), { found: "none", count: 3 });
});

test("a question that failed is asked again, and no answer is kept for more than an hour", async () => {
  const { clock, asked } = lookups({ a: { failure: "failed" }, b: found(2, 2 ** 31) });
  assert.equal((await asked(2)).count, 2);
  assert.equal((await asked(2)).count, 1);
  clock.nowMs = 3_600_000;
  assert.equal((await asked(2)).count, 2);
});
