/** Fragments, pings and bytes of many WebSockets of a team share its turns of the event loop. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo, Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { countTurns } from "../../../test/count-turns.ts";
import type { FakePty } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { turnUnits } from "../access/message-turns.ts";
import { bytesOfUnit, fragmentUnits } from "./paced-frames.ts";
import { fragmentsMax } from "./unfinished.ts";

/** `open` opens terminals' WebSockets; `turnsOf` records the turn of each call of a method of ws. */
async function listening(t: TestContext) {
  const api = new Api();
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const open = async (key = keys.red, capsuleId = id) => {
    const path = `ws://127.0.0.1:${port}/v1/capsules/${capsuleId}/pty`;
    const socket = new WebSocket(path, { headers: { "x-api-key": key } });
    t.after(() => socket.terminate());
    await once(socket, "open");
    return socket;
  };
  const turn = countTurns(t);
  const turnsOf = (
    prototype: Record<string, (...args: unknown[]) => unknown>,
    method: string,
    isCounted = () => true,
  ) => {
    const turns: number[] = [];
    const original = prototype[method] as (...args: unknown[]) => unknown;
    t.mock.method(prototype, method, function (this: unknown, ...args: unknown[]) {
      if (isCounted.call(this)) turns.push(turn());
      return original.apply(this, args);
    });
    return turns;
  };
  return { api, id, open, turnsOf };
}

const receiverOf = (socket: WebSocket) => (socket as unknown as { _receiver: object })._receiver;
const rawOf = (socket: WebSocket) => (socket as unknown as { _socket: Socket })._socket;

/** The most calls in one turn. */
function mostOf(turns: number[]): number {
  const counts = new Map<number, number>();
  for (const turn of turns) counts.set(turn, (counts.get(turn) ?? 0) + 1);
  return Math.max(...counts.values());
}

/** A frame with a mask of zeros. */
function frame(firstByte: number, payload = Buffer.alloc(0)): Buffer {
  return Buffer.concat([Buffer.from([firstByte, 0x80 | payload.length, 0, 0, 0, 0]), payload]);
}

test("in a turn of the event loop 1 024 fragments of a team are taken, however many WebSockets it has", async (t) => {
  const { open, turnsOf } = await listening(t);
  const sockets = await Promise.all(Array.from({ length: 16 }, () => open()));
  const prototype = Object.getPrototypeOf(receiverOf(sockets[0]!));
  const turns = turnsOf(prototype, "dataMessage");
  const fragments = Buffer.concat([frame(0x02), ...Array.from({ length: fragmentsMax - 1 }, () => frame(0x00))]);
  for (const socket of sockets) rawOf(socket).write(fragments);
  await waitFor("all are taken", () => turns.length === sockets.length * fragmentsMax);
  assert.ok(mostOf(turns) <= turnUnits / fragmentUnits, String(mostOf(turns)));
});

test("in a turn of the event loop 64 pings of a team are answered, and those of another team besides", async (t) => {
  const { api, open, turnsOf } = await listening(t);
  const blueId = await api.capsule("running", keys.blue);
  const sockets = await Promise.all(Array.from({ length: 160 }, () => open()));
  const blue = await open(keys.blue, blueId);
  const turns = turnsOf(WebSocket.prototype as never, "pong");
  const pings = Buffer.concat(Array.from({ length: 10 }, () => frame(0x89)));
  for (const socket of sockets) rawOf(socket).write(pings);
  blue.ping("blue");
  const [answer] = await once(blue, "pong");
  assert.equal(String(answer), "blue");
  await waitFor("all are answered", () => turns.length === 10 * sockets.length + 1);
  assert.ok(mostOf(turns) <= turnUnits + 1, String(mostOf(turns)));
});

test("in a turn of the event loop 1 MiB of large frames of a team is unmasked", async (t) => {
  const { open, turnsOf } = await listening(t);
  const sockets = await Promise.all(Array.from({ length: 8 }, () => open()));
  const turns = turnsOf(Object.getPrototypeOf(receiverOf(sockets[0]!)), "dataMessage");
  for (const socket of sockets) socket.send(" ".repeat(1 << 20), { fin: false });
  await waitFor("all are taken", () => turns.length === sockets.length);
  assert.equal(mostOf(turns), 1);
});

test("messages stay in order with large fragments and pings among them", async (t) => {
  const { api, id, open } = await listening(t);
  const socket = await open();
  socket.send('{"type":"start"}');
  await once(socket, "message");
  const typed: number[] = [];
  (api.agent(id).ptys[0] as FakePty).write = (bytes: Uint8Array) => typed.push(bytes.length) > 0;
  const input = (bytes: number) => JSON.stringify({ type: "input", data: Buffer.alloc(bytes).toString("base64") });
  const sizes = [1, 5 * bytesOfUnit, 2, 20 * bytesOfUnit, 3];
  let pongs = 0;
  socket.on("pong", () => pongs++);
  for (const size of [...sizes, ...sizes]) {
    const text = input(size);
    for (let at = 0; at < 20; at++) {
      const part = text.slice(Math.floor((at * text.length) / 20), Math.floor(((at + 1) * text.length) / 20));
      socket.send(part, { fin: at === 19 });
      if (at % 5 === 0) socket.ping();
    }
  }
  await waitFor("all is typed", () => typed.length === 2 * sizes.length);
  assert.deepEqual(typed, [...sizes, ...sizes]);
  await waitFor("each ping is answered", () => pongs === 2 * sizes.length * 4);
});

test("a socket that is closed while its frames wait for turns is closed when they are taken", async (t) => {
  const { api, open } = await listening(t);
  const sockets = await Promise.all(Array.from({ length: 16 }, () => open()));
  const fragments = Buffer.concat([frame(0x02), ...Array.from({ length: fragmentsMax - 1 }, () => frame(0x00))]);
  for (const socket of sockets) {
    rawOf(socket).write(fragments);
    rawOf(socket).destroySoon();
  }
  await waitFor("no socket is left", async () => (await api.call("GET", "/v1/limits")).json.usage.sockets === 0);
});
