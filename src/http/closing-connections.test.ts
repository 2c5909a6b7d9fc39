import assert from "node:assert/strict";
import { once } from "node:events";
import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { within } from "../../test/wait-for.ts";
import { endWhenAnswered } from "./closing-connections.ts";

/** A server that lets connections idle for ever, and the first request to it. */
async function asked() {
  const server = createServer({ keepAliveTimeout: 0 });
  const end = endWhenAnswered(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const agent = new Agent({ keepAlive: true });
  const message = request({ port: (server.address() as AddressInfo).port, host: "127.0.0.1", agent }).end();
  const response = (await once(server, "request"))[1] as ServerResponse;
  const close = () => {
    const closed = once(server, "close");
    end(3_600_000);
    server.close();
    return within("the server to close", closed);
  };
  return { message, response, close, agent };
}

test("an answer whose head is not written says that its connection ends", async () => {
  const { message, response, close, agent } = await asked();
  const closed = close();
  response.end("whole");
  const [answer] = (await once(message, "response")) as [IncomingMessage];
  assert.equal(answer.headers.connection, "close");
  answer.resume();
  await closed;
  agent.destroy();
});

test("a connection whose answer has begun ends with it, and nothing of the answer is lost", async () => {
  const { message, response, close, agent } = await asked();
  const bytes = 4 << 20; // more than a socket's buffers
  response.writeHead(200, { "content-length": bytes });
  response.flushHeaders();
  const [answer] = (await once(message, "response")) as [IncomingMessage];
  assert.equal(answer.headers.connection, "keep-alive");
  const closed = close();
  response.end(Buffer.alloc(bytes));
  let received = 0;
  for await (const chunk of answer) received += chunk.length;
  assert.equal(received, bytes);
  await closed;
  agent.destroy();
});
