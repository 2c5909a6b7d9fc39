import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { AnswerReader, HttpConnection } from "./http-connection.ts";

async function withServer(
  answer: (request: IncomingMessage, response: ServerResponse) => void,
  use: (connection: HttpConnection) => Promise<void>,
): Promise<void> {
  const server = createServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  const connection = await HttpConnection.open(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  try {
    await use(connection);
  } finally {
    connection.close();
    server.closeAllConnections();
    server.close();
  }
}

test("an answer is complete with its last byte, and chunks are copied", () => {
  const body = Buffer.from('{"é":"ü"}');
  const whole = Buffer.from(`HTTP/1.1 201 Created\r\nDate: now\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  const reader = new AnswerReader();
  const piece = Buffer.alloc(1); // reused, as the socket's buffer is
  for (const byte of whole.subarray(0, -1)) {
    piece[0] = byte;
    assert.equal(reader.take(piece), undefined);
  }
  assert.deepEqual(reader.take(whole.subarray(-1)), { status: 201, text: '{"é":"ü"}' });
  const empty = Buffer.from("HTTP/1.1 204 No Content\r\n\r\n");
  assert.deepEqual(new AnswerReader().take(empty), { status: 204, text: "" });
});

test("requests follow each other on one connection, with key and body", () =>
  withServer(
    async (request, response) => {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      const said = `${request.method} ${request.url} ${String(request.headers["x-api-key"])} ${Buffer.concat(parts)}`;
      response.setHeader("content-length", Buffer.byteLength(said));
      response.write(said.slice(0, 5));
      setImmediate(() => response.end(said.slice(5)));
    },
    async (connection) => {
      assert.deepEqual(await connection.ask("GET", "/a", "k", undefined), { status: 200, text: "GET /a k " });
      const asked = connection.ask("POST", "/b", "k", '{"ö":1}');
      await assert.rejects(connection.ask("GET", "/c", "k", undefined), /one request at a time/);
      assert.deepEqual(await asked, { status: 200, text: 'POST /b k {"ö":1}' });
    },
  ));

test("a request fails when the connection is lost", () =>
  withServer(
    (request) => request.socket.destroy(),
    async (connection) => {
      await assert.rejects(connection.ask("GET", "/", "k", undefined));
      assert.ok(connection.isOver);
      await assert.rejects(connection.ask("GET", "/", "k", undefined), /is over/);
    },
  ));

test("an answer of unknown length fails its request", () =>
  withServer(
    (_request, response) => {
      response.write("a");
      response.end("b");
    },
    async (connection) => {
      await assert.rejects(connection.ask("GET", "/", "k", undefined), /how long/);
      assert.ok(connection.isOver);
    },
  ));
