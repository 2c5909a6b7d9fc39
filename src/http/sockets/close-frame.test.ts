/** The end of a WebSocket is the answer to its client's close frame, and not the end of the connection below it. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createConnection, type Socket } from "node:net";
import { test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { waitFor, within } from "../../../test/wait-for.ts";

/** A client that does not end its direction by itself, as the last of several hosts that pass a connection on. It reads nothing. */
async function terminal(port: number, id: string): Promise<Socket> {
  const client = createConnection({ host: "127.0.0.1", port, allowHalfOpen: true });
  const head = ["Host: x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"];
  const key = ["Sec-WebSocket-Key: BwcHBwcHBwcHBwcHBwcHBw==", `X-API-Key: ${keys.red}`];
  client.write(`${[`GET /v1/capsules/${id}/pty HTTP/1.1`, ...head, ...key].join("\r\n")}\r\n\r\n`);
  await within("the terminal is open", once(client, "data"));
  client.pause();
  client.write(frame(1, Buffer.from('{"type":"start"}')));
  return client;
}

/** With a mask of zeros. */
function frame(opcode: number, payload: Buffer): Buffer {
  return Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | payload.length, 0, 0, 0, 0]), payload]);
}

test("a client has left its terminal when the close frame is answered, and has what was sent before", async (t) => {
  const api = new Api();
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const client = await terminal(port, id);
  t.after(() => client.destroy());
  const pty = await waitFor("the terminal has started", () => api.agent(id).ptys[0]);
  const cancel = t.mock.method(pty, "cancel", () => assert.equal(pty.consumedBytes, printed.length));
  const printed = Buffer.alloc(5 << 20, "x"); // less than the service holds of a message, more than the kernel
  pty.print("pty", printed);
  client.write(frame(8, Buffer.from([0x03, 0xe8])));
  assert.equal((await fetch(`http://127.0.0.1:${port}/healthz`)).status, 200); // the close frame came before it
  assert.equal(pty.consumedBytes, 0);
  let receivedBytes = 0;
  client.on("data", (bytes) => {
    receivedBytes += bytes.length;
  });
  client.resume();
  await within("the server has ended its direction", once(client, "end"));
  assert.ok(receivedBytes > (printed.length * 4) / 3, `${receivedBytes} bytes`);
  assert.deepEqual([cancel.mock.callCount(), client.writable], [1, true]);
});
