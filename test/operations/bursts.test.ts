/** Clients that connect in the same moment: the kernel keeps their connections until the server accepts them. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

/** A team may send this many creates at once. */
const clients = 1_000;
const kernelMax = Number(readFileSync("/proc/sys/net/core/somaxconn", "utf8"));
/** The kernel drops a connection without room in the queue, and every further try while the server accepts none. */
const deadlineMs = 60_000;

test("1,000 clients that connect while the server is busy are connected at once, and then answered", {
  timeout: 300_000,
  skip: kernelMax < clients && `net.core.somaxconn is ${kernelMax}`,
}, async () => {
  const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0", CAPSULE_CONNECTIONS_PER_ADDRESS_MAX: "2000" };
  await using server = await Server.start({ env });
  const client = await Client.connect(server.url, server.apiKey);
  const { hostname, port } = new URL(server.url);
  const sockets: Socket[] = [];
  let connected = 0;
  const all = Promise.withResolvers<void>();
  process.kill(server.pid!, "SIGSTOP"); // it accepts nothing
  try {
    for (let count = 0; count < clients; count++) {
      const socket = connect({ host: hostname, port: Number(port) }, () => ++connected === clients && all.resolve());
      socket.on("error", all.reject);
      sockets.push(socket);
    }
    await Promise.race([all.promise, delay(deadlineMs, undefined, { ref: false })]);
  } finally {
    process.kill(server.pid!, "SIGCONT");
  }
  assert.equal(connected, clients);
  await client.expect(200, "GET", "/v1/limits");
  for (const socket of sockets) socket.destroy();
  client.close();
});
