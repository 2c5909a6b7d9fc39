/** Clients that send many messages at once, or large ones: the server takes one of each client, or team, in a turn of the event loop. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { countTurns } from "../../../test/count-turns.ts";
import type { FakePty } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";

const messages = 200;

test("each message of a client is handled in a turn of the event loop of its own", async (t) => {
  const api = new Api();
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/pty`, { headers: { "x-api-key": keys.red } });
  await once(socket, "open");
  socket.send('{"type":"start"}');
  await once(socket, "message");
  const turn = countTurns(t);
  const turns: number[] = [];
  (api.agent(id).ptys[0] as FakePty).write = () => turns.push(turn()) > 0;
  for (let sent = 0; sent < messages; sent++) socket.send('{"type":"input","data":"eA=="}');
  await waitFor("all are handled", () => turns.length === messages);
  assert.equal(new Set(turns).size, messages);
  socket.terminate();
});

test("in a turn of the event loop one large message of a team is handled, however many WebSockets it has", async (t) => {
  const api = new Api();
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const text = JSON.stringify({ type: "input", data: Buffer.alloc(60_000).toString("base64") });
  const turn = countTurns(t);
  const turns: number[] = [];
  const sockets = await Promise.all(
    Array.from({ length: 16 }, async () => {
      const headers = { "x-api-key": keys.red };
      const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/pty`, { headers });
      await once(socket, "open");
      socket.send('{"type":"start"}');
      await once(socket, "message");
      return socket;
    }),
  );
  for (const pty of api.agent(id).ptys) (pty as FakePty).write = () => turns.push(turn()) > 0;
  for (let sent = 0; sent < 4; sent++) for (const socket of sockets) socket.send(text);
  await waitFor("all are handled", () => turns.length === 4 * sockets.length);
  assert.equal(new Set(turns).size, turns.length);
  for (const socket of sockets) socket.terminate();
});
