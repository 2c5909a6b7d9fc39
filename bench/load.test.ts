import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { Load } from "./load.ts";

async function load(t: TestContext, clients: number, answer: RequestListener): Promise<Load> {
  const server = createServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const opened = await Load.open(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, "/x", "key", clients);
  t.after(() => opened[Symbol.dispose]());
  return opened;
}

test("each client asks again when it is answered, by its own connection, and what is counted was answered", async (t) => {
  let clock = 0; // that only requests move on
  t.mock.method(performance, "now", () => clock);
  const ports = new Set<unknown>();
  const four = await load(t, 4, ({ url, headers, socket }, response) => {
    assert.deepEqual([url, headers["x-api-key"]], ["/x", "key"]);
    ports.add(socket.remotePort);
    clock++;
    response.setHeader("content-length", 2).end("{}");
  });
  const { seconds, latencies } = await four.slice(30);
  assert.equal(ports.size, 4);
  assert.ok(clock >= 30 && clock <= 33, `${clock} answers`); // at the end, the other three had asked already
  assert.deepEqual([seconds, latencies.length], [clock / 1_000, clock]);
  assert.ok(latencies.every((ms) => ms >= 1 && ms < clock));
});

test("a failure is no answer", async (t) => {
  const one = await load(t, 1, (_request, response) => response.writeHead(500, { "content-length": 6 }).end("broken"));
  await assert.rejects(one.slice(30), /GET \/x answered 500 broken/);
});

test("where one cannot connect, those that could are closed", { timeout: 60_000 }, async (t) => {
  const server = createServer().listen(0, "127.0.0.1");
  t.after(() => server.closeAllConnections());
  await once(server, "listening");
  const closed = once(server, "close"); // when it has no connection left
  server.once("connection", () => server.close());
  const { port } = server.address() as AddressInfo;
  await assert.rejects(Load.open(`http://127.0.0.1:${port}`, "/x", "key", 100), { code: /^ECONN(REFUSED|RESET)$/ });
  await closed;
});
