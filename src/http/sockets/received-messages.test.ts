/** Parts of messages, and messages that wait, count for their team until they are handled or their socket is closed. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo, Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { closeCodes } from "../../wire/errors.ts";
import { pieceMinBytes, ReceiveBudget, receivedMaxBytes } from "../access/receive-budget.ts";

/** `open` opens a WebSocket of a terminal of its own; `part` sends bytes as the beginning of a frame that never ends. */
async function listening(t: TestContext) {
  const received = new ReceiveBudget();
  const api = new Api({}, { received });
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const open = async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/pty`, {
      headers: { "x-api-key": keys.red },
    });
    t.after(() => socket.terminate());
    await once(socket, "open");
    return socket;
  };
  const rawOf = (socket: WebSocket) => (socket as unknown as { _socket: Socket })._socket;
  const part = (socket: WebSocket, bytes: number) => {
    const head = Buffer.from([0x81, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 1, 2, 3, 4]); // of a text of a MiB
    rawOf(socket).write(Buffer.concat([head, Buffer.alloc(bytes)]));
  };
  return { received, open, part };
}

test("a part of a message counts until its client leaves, and fragments count each", async (t) => {
  const { received, open, part } = await listening(t);
  const isFree = () => received.usedBytes === 0;
  const [first, second] = [await open(), await open()];
  part(first, 100_000);
  await waitFor("the part has arrived", () => received.usedBytes >= 100_000);
  first.terminate();
  await waitFor("it is given back", isFree);
  for (let sent = 0; sent < 100; sent++) second.send("x", { fin: false });
  await waitFor("100 fragments have arrived", () => received.usedBytes >= 100 * pieceMinBytes);
  second.send("x", { fin: true });
  await once(second, "close"); // which is no JSON
  await waitFor("they are given back", isFree);
  const third = await open();
  for (let sent = 0; sent < 2_000; sent++) third.send("x", { fin: false });
  const [code] = await once(third, "close");
  assert.equal(code, closeCodes.tooSlow, "more fragments than a message may have");
  await waitFor("those are given back", isFree);
});

test("a socket whose part of a message is beyond the team's budget is closed with 1013, and others go on", async (t) => {
  const { received, open, part } = await listening(t);
  const [socket, other] = [await open(), await open()];
  const charge = received.open("team-red");
  charge.add(receivedMaxBytes - 50_000);
  part(socket, 100_000);
  const [code] = await once(socket, "close");
  assert.equal(code, closeCodes.busy);
  await waitFor("only the others' are held", () => received.usedBytes === receivedMaxBytes - 50_000);
  other.send('{"type":"start"}');
  await once(other, "message");
  charge.release();
  await waitFor("all is given back", () => received.usedBytes === 0);
});
