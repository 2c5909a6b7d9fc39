import assert from "node:assert/strict";
import { test } from "node:test";
import { nestedNetworks, networkOf, networksAround, ratedNetworks } from "./network.ts";

test("an address is in a /64, a /56 and a /48 of IPv6, or in a /24 and a /16 of IPv4", () => {
  const names = (address: string) => [networkOf(address), ...networksAround(address).map(({ name }) => name)];
  assert.deepEqual(names("2001:db8:a:b1c2:1:2:3:4"), ["2001:db8:a:b1c2", "2001:db8:a:177/56", "2001:db8:a/48"]);
  assert.deepEqual(names("2001:db8::1"), ["2001:db8:0:0", "2001:db8:0:0/56", "2001:db8:0/48"]);
  assert.deepEqual(names("::1"), ["0:0:0:0", "0:0:0:0/56", "0:0:0/48"]);
  assert.deepEqual(names("192.0.2.7"), ["192.0.2.7", "192.0.2/24", "192.0/16"]);
  assert.deepEqual(names("::ffff:192.0.2.7"), ["::ffff:192.0.2.7", "::ffff:192.0.2/24", "::ffff:192.0/16"]);
  assert.deepEqual(
    ["2001:db8::1", "192.0.2.7"].map((address) => networksAround(address).map(({ times }) => times)),
    [
      [2, 4],
      [2, 4],
    ],
  );
});

test("larger networks of IPv6 have rates, those of IPv4 have none", () => {
  const names = (address: string) => ratedNetworks(address).map(({ name, times }) => `${name} ${times}`);
  assert.deepEqual(names("2001:db8:a:b1c2::1"), ["2001:db8:a:b1c2 1", "2001:db8:a:177/56 2", "2001:db8:a/48 4"]);
  assert.deepEqual(names("192.0.2.7"), ["192.0.2.7 1"]);
  assert.deepEqual(names("::ffff:192.0.2.7"), ["::ffff:192.0.2.7 1"]);
});

test("turns are nested by networks, the largest first", () => {
  assert.deepEqual(nestedNetworks("2001:db8:a:b1c2::1"), [
    ...["2001:db8/32", "2001:db8:a/48", "2001:db8:a:177/56", "2001:db8:a:b1c2"],
  ]);
  assert.deepEqual(nestedNetworks("192.0.2.7"), ["192.0/16", "192.0.2/24", "192.0.2.7"]);
});
