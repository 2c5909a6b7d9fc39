/** A client without a key that holds all connections it can get, each for one request, beside a team with a key. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { test } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const connectionsMax = 100;

test("a client without a key that holds connections of many networks keeps no team out", {
  timeout: 600_000,
}, async () => {
  const limits = { CAPSULE_CONNECTIONS_MAX: `${connectionsMax}`, CAPSULE_CONNECTIONS_PER_ADDRESS_MAX: "50" };
  await using server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0", ...limits } });
  const known = await Client.connect(server.url, server.apiKey);
  await using capsule = await known.capsule();
  const held: Socket[] = [];
  try {
    let refused = 0;
    for (let count = 0; count < 3 * connectionsMax; count++) {
      held.push(await hold(server.url, `127.${count % 200}.0.2`));
      if (count % 10 > 0) continue;
      // Each has a connection of its own, which is new.
      const client = known.as(server.apiKey);
      await client.expect(200, "GET", capsule.path).catch(() => refused++);
      client.close();
    }
    assert.equal(refused, 0, "requests of the team that were not served");
    assert.equal(await capsule.sh("echo served"), "served");
    assert.ok(held.filter((socket) => !socket.closed).length < connectionsMax);
  } finally {
    for (const socket of held) socket.destroy();
    known.close();
  }
});

/** A connection after one request without a key, if it is served. */
async function hold(url: string, localAddress: string): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port), localAddress }).on("error", () => {});
  socket.write("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  await Promise.race([once(socket, "data"), once(socket, "close")]);
  return socket.resume();
}
