import assert from "node:assert/strict";
import type { Socket } from "node:net";
import { test } from "node:test";
import { parseProxies } from "../../network/proxies.ts";
import { clientAddress } from "./client-address.ts";

test("the client's address is the connection's, behind a trusted proxy the last that is no proxy's", () => {
  const cases: [remote: string, lines: string[], proxies: string, expected: string][] = [
    ["10.0.0.1", ["1.1.1.1"], "no", "10.0.0.1"],
    ["127.0.0.1", ["1.1.1.1"], "no", "127.0.0.1"],
    ["10.0.0.1", ["1.1.1.1"], "loopback", "10.0.0.1"],
    ["127.0.0.1", [], "loopback", "127.0.0.1"],
    ["::1", ["1.1.1.1, 2.2.2.2", "3.3.3.3"], "loopback", "3.3.3.3"],
    ["127.0.0.1", ["1.1.1.1, 127.0.0.2"], "loopback", "1.1.1.1"],
    ["127.0.0.1", ["127.0.0.3"], "loopback", "127.0.0.3"],
    ["10.0.0.1", ["1.1.1.1, 10.0.0.2"], "10.0.0.0/30", "1.1.1.1"],
    ["10.0.0.1", ["1.1.1.1, 10.0.0.4"], "10.0.0.0/30", "10.0.0.4"],
    ["10.0.0.4", ["1.1.1.1"], "10.0.0.0/30", "10.0.0.4"],
    ["127.0.0.1", ["1.1.1.1"], "10.0.0.0/30", "127.0.0.1"],
    ["::ffff:10.0.0.1", ["1.1.1.1", "::ffff:10.0.0.2"], "10.0.0.0/30", "1.1.1.1"],
    ["2001:db8::1", ["2001:db8::9, 10.0.0.1"], "10.0.0.1,2001:db8::1", "2001:db8::9"],
    ["10.0.0.1", ["1.1.1.1, unknown"], "10.0.0.1", "unknown"],
  ];
  for (const [remoteAddress, lines, proxies, expected] of cases) {
    const rawHeaders = lines.flatMap((line) => ["X-Forwarded-For", line]);
    const found = clientAddress({ socket: { remoteAddress } as Socket, rawHeaders }, parseProxies(proxies));
    assert.equal(found, expected, `${remoteAddress} ${lines} ${proxies}`);
  }
});
