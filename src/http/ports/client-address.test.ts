import assert from "node:assert/strict";
import type { Socket } from "node:net";
import { test } from "node:test";
import { clientAddress } from "./client-address.ts";

test("the client's address is the connection's, behind a trusted proxy the last that is not the proxy's", () => {
  const cases: [remote: string, lines: string[], hasProxy: boolean, expected: string][] = [
    ["10.0.0.1", ["1.1.1.1"], false, "10.0.0.1"],
    ["127.0.0.1", ["1.1.1.1"], false, "127.0.0.1"],
    ["10.0.0.1", ["1.1.1.1"], true, "10.0.0.1"],
    ["127.0.0.1", [], true, "127.0.0.1"],
    ["::1", ["1.1.1.1, 2.2.2.2", "3.3.3.3"], true, "3.3.3.3"],
    ["127.0.0.1", ["1.1.1.1, 127.0.0.2"], true, "1.1.1.1"],
    ["127.0.0.1", ["127.0.0.3"], true, "127.0.0.3"],
  ];
  for (const [remoteAddress, lines, hasProxy, expected] of cases) {
    const rawHeaders = lines.flatMap((line) => ["X-Forwarded-For", line]);
    assert.equal(clientAddress({ socket: { remoteAddress } as Socket, rawHeaders }, hasProxy), expected, String(lines));
  }
});
