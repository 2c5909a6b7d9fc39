/** A request whose head cannot be written leaves no connection taken. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { Agent, IncomingMessage, ServerResponse } from "node:http";
import { type AddressInfo, createServer, Socket } from "node:net";
import { test } from "node:test";
import { waitFor, within } from "../../../test/wait-for.ts";
import { ChunkTurns } from "../access/chunk-turns.ts";
import { ForwardedRequest } from "./forwarded-request.ts";

test("a head that Node refuses gives its connection back", async (t) => {
  const server = createServer((socket) => socket.resume()).listen(0, "127.0.0.1");
  await once(server, "listening");
  const agent = new Agent({ host: "127.0.0.1", port: (server.address() as AddressInfo).port, keepAlive: true });
  t.after(() => {
    agent.destroy();
    server.close();
  });
  const request = new IncomingMessage(new Socket());
  request.rawHeaders = ["Host", "x", "X-Odd", "\u0001"];
  const exchange = {
    ...{ request, response: new ServerResponse(request), upgrade: undefined, team: "team-red", onAnswer: () => {} },
    admitLookup: () => {},
    caller: { identity: undefined, address: "192.0.2.7", remote: "192.0.2.7", requestId: "e".repeat(32) },
  };
  const connected = once(server, "connection");
  const options = { agent, chunkTurns: new ChunkTurns() };
  assert.throws(() => new ForwardedRequest(exchange, options), { code: "ERR_INVALID_CHAR" });
  await within("the connection is made", connected);
  await waitFor("it is free", () => Object.keys(agent.sockets).length === 0);
});
