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
  let answered = 0;
  const ports = new Set<unknown>();
  const four = await load(t, 4, ({ url, headers, socket }, response) => {
    assert.deepEqual([url, headers["x-api-key"]], ["/x", "key"]);
    ports.add(socket.remotePort);
    answered++;
    response.setHeader("content-length", 2).end("{}");
  });
  const { seconds, latencies } = await four.slice(30);
  assert.equal(ports.size, 4);
  assert.ok(answered > 4 && latencies.length === answered, `${latencies.length} of ${answered}`);
  assert.ok(seconds >= 0.03 && latencies.every((ms) => ms > 0 && ms < 1_000 * seconds));
});

test("a failure is no answer", async (t) => {
  const one = await load(t, 1, (_request, response) => response.writeHead(500, { "content-length": 6 }).end("broken"));
  await assert.rejects(one.slice(30), /GET \/x answered 500 broken/);
});
