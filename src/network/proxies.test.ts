import assert from "node:assert/strict";
import { test } from "node:test";
import { parseProxies } from "./proxies.ts";

test("a peer is a proxy by its address, and by a network that it lies in", () => {
  const cases: [setting: string, proxies: string[], others: string[]][] = [
    ["no", [], ["127.0.0.1", "::1", "10.0.0.5", ""]],
    ["loopback", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"], ["128.0.0.1", "::2", "10.0.0.5"]],
    ["127.0.0.2", ["127.0.0.2", "::ffff:127.0.0.2", "::ffff:7f00:2"], ["127.0.0.1", "::1", "::ffff:127.0.0.1"]],
    ["10.0.0.0/8", ["10.0.0.5", "10.255.255.255", "::ffff:10.0.0.5"], ["11.0.0.0", "9.255.255.255", "::a00:5"]],
    ["10.1.2.3/31", ["10.1.2.2", "10.1.2.3"], ["10.1.2.1", "10.1.2.4"]],
    ["::ffff:10.0.0.5", ["10.0.0.5", "::ffff:10.0.0.5"], ["10.0.0.6"]],
    ["2001:db8::/33", ["2001:db8::1", "2001:0DB8:7fff::"], ["2001:db8:8000::", "10.0.0.5"]],
    ["loopback, 10.0.0.5 ,2001:db8::5", ["::1", "10.0.0.5", "2001:db8:0::5"], ["10.0.0.6", "2001:db8::6"]],
    ["fe80::/10", ["fe80::1", "fe80::1%eth0"], ["fec0::1"]],
  ];
  for (const [setting, proxies, others] of cases) {
    const list = parseProxies(setting);
    for (const address of proxies) assert.equal(list.has(address), true, `${setting} has ${address}`);
    for (const address of others) assert.equal(list.has(address), false, `${setting} has no ${address}`);
  }
});

test("a text that is no address is none of a proxy", () => {
  const list = parseProxies("loopback,0.0.0.0/1,128.0.0.0/1,::/1,8000::/1");
  for (const address of ["unknown", "_hidden", "", "10.0.0.5:80", "[::1]", "10.0.0"])
    assert.equal(list.has(address), false);
  assert.equal(list.has(undefined), false);
});

const malformed = [
  ...["yes", "true", "1", "balancer.internal", "no,loopback", "10.0.0.5,no", ",", "10.0.0.5,", "10.0.0", "010.0.0.5"],
  ...["10.0.0.0/0", "::/0", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/8/8", "10.0.0.0/255.0.0.0"],
  ...["[::1]", "10.0.0.5:80", "fe80::1%eth0", "loopback/8", "10.0.0.5 10.0.0.6", "unix:"],
];

for (const text of malformed)
  test(`proxies of ${JSON.stringify(text)} are refused`, () => {
    assert.throws(() => parseProxies(text), /^Error: must be no, or loopback, addresses and networks/);
  });

test("16 entries are taken, and no more", () => {
  const addresses = Array.from({ length: 16 }, (_, i) => `10.0.0.${i}`);
  assert.equal(parseProxies(addresses.join()).has("10.0.0.15"), true);
  assert.throws(() => parseProxies([...addresses, "loopback"].join()), /at most 16/);
});
