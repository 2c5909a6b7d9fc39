/** Clients of one site share a rate, whatever address each request has. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { NetworkLimiter } from "./network-limiter.ts";

/** How many requests from each of these addresses in turn are taken, at one moment. */
function taken(addresses: readonly string[]): number {
  const limiter = new NetworkLimiter(1, 10, () => 0);
  return addresses.filter((address) => limiter.take(address) === 0).length;
}

const times = <T>(count: number, make: (index: number) => T) =>
  Array.from({ length: count }, (_, index) => make(index));
const hex = (index: number) => index.toString(16);

test("the networks of an IPv6 site have twice and four times the rate of one", () => {
  assert.equal(taken(times(1_000, () => "2001:db8:1:1::1")), 10);
  assert.equal(taken(times(1_000, (index) => `2001:db8:1:1:${hex(index)}::1`)), 10, "one /64");
  assert.equal(taken(times(200, (index) => `2001:db8:1:1${hex(index % 16)}::1`)), 20, "one /56");
  assert.equal(taken(times(1_000, (index) => `2001:db8:1:${hex(index << 8)}::1`)), 40, "one /48");
  assert.equal(taken(times(100, (index) => `2001:db8:${hex(index)}::1`)), 100, "one /32 has many clients");
});

test("an address of IPv4 has no rate in common with its neighbours", () => {
  assert.equal(taken(times(100, () => "192.0.2.7")), 10);
  assert.equal(taken(times(250, (index) => `192.0.2.${index}`)), 250);
});

test("a client that is refused for its own network uses up nothing of its neighbours'", () => {
  const limiter = new NetworkLimiter(1, 10, () => 0);
  for (let count = 0; count < 1_000; count++) limiter.take("2001:db8:1:1::1");
  assert.equal(limiter.take("2001:db8:1:2::1"), 0);
});
