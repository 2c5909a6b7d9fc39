import assert from "node:assert/strict";
import { once } from "node:events";
import { readlinkSync } from "node:fs";
import { createServer } from "node:net";
import { test } from "node:test";
import { descriptorOf } from "./listener.ts";

test("Node's undocumented field holds the descriptor of a listening socket", async () => {
  const server = createServer();
  assert.throws(() => descriptorOf(server), /does not reveal/, "not listening yet");
  await once(server.listen(0, "127.0.0.1"), "listening");
  try {
    assert.match(readlinkSync(`/proc/self/fd/${descriptorOf(server)}`), /^socket:/);
  } finally {
    server.close();
  }
});
