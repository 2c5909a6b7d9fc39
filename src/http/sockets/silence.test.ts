import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect } from "node:net";
import { test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { steadyClock } from "../../../test/fakes/steady-clock.ts";
import { waitFor, within } from "../../../test/wait-for.ts";

const stallMs = 200;

test("a silent WebSocket is not disconnected like a client without a request", async (t) => {
  const clock = steadyClock(t);
  const api = new Api({}, { stallMs });
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  const url = `ws://127.0.0.1:${port}/v1/capsules/${await api.capsule()}/exec/stream`;
  const socket = new WebSocket(url, { headers: { "x-api-key": keys.red } });
  try {
    await once(socket, "open");
    for (let times = 0; times < 3; times++) {
      const accepted = once(api.app.server, "connection");
      const silent = connect(port, "127.0.0.1").resume();
      await within("the connection is accepted", accepted);
      for (let passedMs = 0; passedMs < 2 * stallMs; passedMs += stallMs / 4) await clock.pass(stallMs / 4);
      await waitFor("the client without a request is disconnected", () => silent.closed);
    }
    assert.equal(socket.readyState, WebSocket.OPEN);
  } finally {
    socket.terminate();
    await api.app.close();
  }
});
