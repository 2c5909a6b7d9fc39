/** Bytes from guests' servers to the clients of one team share its turns of the event loop. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { type TestContext, test } from "node:test";
import { type RawData, WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { countTurns } from "../../../test/count-turns.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { ConnectionReset } from "../../agent/dial.ts";
import { turnBytes } from "../access/chunk-turns.ts";

const chunk = Buffer.alloc(64 * 1024, "x");

/** Connections to one port, with the servers' ends. */
async function connections(t: TestContext, count: number) {
  const api = new Api();
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const servers: Duplex[] = [];
  api.agent(id).servers.set(80, (server) => servers.push(server));
  const open = async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/ports/80/tcp`, {
      headers: { "x-api-key": keys.red },
    });
    t.after(() => socket.terminate());
    const received: (number | string)[] = [];
    socket.on("message", (data: RawData, isBinary: boolean) =>
      received.push(isBinary ? (data as Buffer).length : data.toString()),
    );
    const closed = once(socket, "close") as Promise<[number]>;
    await once(socket, "open");
    return { received, closed };
  };
  const clients = await Promise.all(Array.from({ length: count }, open));
  const turn = countTurns(t);
  const sentBytes = new Map<number, number>();
  const { send } = WebSocket.prototype;
  t.mock.method(WebSocket.prototype, "send", function (this: WebSocket, data: Buffer, ...rest: unknown[]) {
    sentBytes.set(turn(), (sentBytes.get(turn()) ?? 0) + data.length);
    return Reflect.apply(send, this, [data, ...rest]);
  });
  return { servers, clients, sentBytes };
}

const bytesOf = (received: (number | string)[]) =>
  received.reduce<number>((sum, each) => sum + (typeof each === "number" ? each : 0), 0);

test("in a turn of the event loop 1 MiB of a team's servers is sent, and the end follows the bytes", async (t) => {
  const { servers, clients, sentBytes } = await connections(t, 50);
  for (const server of servers) {
    server.write(chunk);
    server.end(chunk);
  }
  await waitFor("each has all", () => clients.every(({ received }) => received.at(-1) === "end"));
  for (const { received } of clients) assert.equal(bytesOf(received), 2 * chunk.length);
  const mostBytes = Math.max(...sentBytes.values());
  assert.ok(mostBytes <= turnBytes + chunk.length, `${mostBytes} bytes in a turn`);
});

test("a reset follows the bytes that wait for a turn", async (t) => {
  const { servers, clients } = await connections(t, 50);
  for (const server of servers) server.write(chunk, () => server.destroy(new ConnectionReset()));
  for (const { received, closed } of clients) {
    assert.deepEqual(await within("the socket is closed", closed), [1011, Buffer.from("the connection was reset")]);
    assert.equal(bytesOf(received), chunk.length);
  }
});
