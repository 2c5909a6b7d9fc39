/** Fails when a release of Node changes the undocumented properties that node-internals.ts uses. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { ClientRequest, createServer, type ServerResponse } from "node:http";
import { type AddressInfo, connect, Socket } from "node:net";
import { type Duplex, duplexPair } from "node:stream";
import { type TestContext, test } from "node:test";
import { TLSSocket } from "node:tls";
import { waitFor } from "../../test/wait-for.ts";
import {
  keepIdle,
  pendingResponse,
  sendHead,
  stopParsing,
  tellKeepAlive,
  transferred,
  transportOf,
  writeInformation,
  writeRequestHead,
} from "./node-internals.ts";

/** When Node has passed a response's bytes to the socket, before the event loop sends any more of them. */
const written = () => new Promise<void>((resolve) => process.nextTick(resolve));

/** A connection as client and server see it, with the response to its first request. */
async function request(t: TestContext): Promise<{ client: Socket; served: Socket; response: ServerResponse }> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const accepted = once(server, "connection") as Promise<[Socket]>;
  const requested = once(server, "request") as Promise<[unknown, ServerResponse]>;
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1").on("error", () => {});
  t.after(() => client.destroy());
  const [served] = await accepted;
  assert.equal(pendingResponse(served), undefined, "no request has arrived");
  client.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const [, response] = await requested;
  return { client, served, response };
}

test("a connection has a pending response until the response is complete", async (t) => {
  const { served, response } = await request(t);
  assert.equal(pendingResponse(served), response);
  response.end("text");
  await once(response, "close");
  assert.equal(pendingResponse(served), undefined);
});

test("bytes that the client reads count as accepted, bytes that wait for it do not", async (t) => {
  const { client, served, response } = await request(t);
  const before = transferred(served);
  assert.ok(before.received > 0);
  response.write(Buffer.alloc(64 << 20)); // more than the socket buffers of both ends
  await written();
  const blocked = transferred(served);
  assert.ok(blocked.accepted > before.accepted);
  assert.ok(blocked.accepted < 64 << 20, "some wait");
  response.write("more");
  await written();
  assert.deepEqual(transferred(served), blocked);
  let missing = 16 << 20;
  for await (const chunk of client.iterator({ destroyOnReturn: false })) {
    missing -= (chunk as Buffer).length;
    if (missing <= 0) break;
  }
  assert.ok(transferred(served).accepted > blocked.accepted);
});

test("one connection tells another idle time than the server's, and is kept for it until its next request", async (t) => {
  const { client, served, response } = await request(t);
  tellKeepAlive(response, 120_000);
  response.once("finish", () => keepIdle(served, 120_000));
  response.end();
  assert.match(String((await once(client, "data"))[0]), /\r\nKeep-Alive: timeout=120\r\n/);
  assert.equal(served.timeout, 121_000);
  client.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  await waitFor("the next request", () => pendingResponse(served) !== undefined);
  assert.equal(served.timeout, 0);
});

test("a TLS socket has the one of its TCP connection", () => {
  const raw = new Socket();
  const secure = new TLSSocket(raw);
  assert.deepEqual([transportOf(raw) === raw, transportOf(secure) === raw], [true, true]);
  secure.destroy();
});

test("parsing stops behind the request at which it is told to", async (t) => {
  let requests = 0;
  const server = createServer((request) => {
    if (++requests === 3) stopParsing(request.socket);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1").on("error", () => {});
  t.after(() => client.destroy());
  client.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100));
  await waitFor("the requests are parsed", () => requests >= 3);
  await new Promise(setImmediate);
  assert.ok(requests <= 4, `${requests} were parsed`);
});

test("a client's request has exactly the headers that it is given, in their order and bytes", async () => {
  for (const headers of [
    ["X-b", "2", "x-A", "é"],
    ["Expect", "100-continue", "A", "é"],
  ]) {
    const [near, far] = duplexPair();
    let sent = "";
    far.on("data", (chunk: Buffer) => {
      sent += chunk.toString("latin1");
    });
    const message = new ClientRequest({
      method: "POST",
      path: "/\xe9",
      setHost: false,
      createConnection: () => near as Duplex,
    });
    message.on("error", () => {});
    writeRequestHead(message, headers);
    message.end();
    const lines = [];
    for (let at = 0; at < headers.length; at += 2) lines.push(`${headers[at]}: ${headers[at + 1]}\r\n`);
    const expected = `POST /\xe9 HTTP/1.1\r\n${lines.join("")}Connection: close\r\n\r\n`;
    await waitFor("the head", () => sent.length >= expected.length);
    assert.equal(sent, expected);
    message.destroy();
  }
});

test("a provisional answer and the head of an answer are sent at once, byte for byte", async (t) => {
  const { client, response } = await request(t);
  let received = "";
  client.on("data", (chunk: Buffer) => {
    received += chunk.toString("latin1");
  });
  writeInformation(response, 103, ["Link", "\xe9"]);
  response.sendDate = false;
  response.writeHead(200, "OK", ["A", "\xe9", "Content-Length", "1"]);
  sendHead(response);
  const expected =
    "HTTP/1.1 103 Early Hints\r\nLink: \xe9\r\n\r\nHTTP/1.1 200 OK\r\nA: \xe9\r\nContent-Length: 1\r\nConnection: keep-alive\r\n";
  await waitFor("the head", () => received.endsWith("\r\n\r\n") && received.includes("keep-alive"));
  assert.ok(received.startsWith(expected), received);
});
