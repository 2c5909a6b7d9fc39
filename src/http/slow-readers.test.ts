import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type RequestListener, type ServerResponse } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { waitFor } from "../../test/wait-for.ts";
import { exemptFromStallWatch, StallWatch } from "./slow-readers.ts";

const stallMs = 400;
const mebibyte = 1 << 20;

/** A server whose connections the test checks, and connections to it. */
async function start(t: TestContext, answer: RequestListener) {
  let nowMs = 0;
  const watch = new StallWatch(stallMs);
  const server = createServer(answer).on("connection", (socket) => watch.add(socket));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return {
    /** The client's end and the server's. */
    async connection(request = ""): Promise<{ client: Socket; served: Socket }> {
      const client = connect(port, "127.0.0.1").on("error", () => {});
      t.after(() => client.destroy());
      const [[served]] = (await Promise.all([once(server, "connection"), once(client, "connect")])) as [
        [Socket],
        unknown,
      ];
      if (request !== "") client.write(request);
      return { client, served };
    },
    pass(ms: number): void {
      for (let passed = 0; passed < ms; passed += stallMs / 4) {
        nowMs += stallMs / 4;
        watch.check(nowMs);
      }
    },
  };
}

const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

async function read(client: Socket, bytes: number): Promise<void> {
  let missing = bytes;
  for await (const chunk of client.iterator({ destroyOnReturn: false })) {
    missing -= (chunk as Buffer).length;
    if (missing <= 0) return;
  }
  assert.fail("the connection ended");
}

test("a silent client is disconnected; one that waits for its response is not", async (t) => {
  const asked = Promise.withResolvers<ServerResponse>();
  const { connection, pass } = await start(t, (_request, response) => asked.resolve(response));
  const waiting = await connection(request);
  const response = await asked.promise;
  const silent = await connection();
  pass(stallMs);
  assert.equal(silent.served.destroyed, false);
  pass(stallMs / 2);
  assert.equal(silent.served.destroyed, true);
  pass(20 * stallMs);
  assert.equal(waiting.served.destroyed, false);
  response.end("at last");
  await read(waiting.client, 7);
});

test("a slow reader is served; a client that reads nothing is disconnected, even while more is written", async (t) => {
  const asked = Promise.withResolvers<ServerResponse>();
  const { connection, pass } = await start(t, (_request, response) => asked.resolve(response));
  const { client, served } = await connection(request);
  const response = await asked.promise;
  response.write(Buffer.alloc(128 * mebibyte)); // more than the socket buffers of both ends
  for (let round = 0; round < 3; round++) {
    await read(client, 16 * mebibyte);
    pass(stallMs);
    assert.equal(served.destroyed, false);
  }
  for (let round = 0; round < 8; round++) {
    response.write("méhr"); // Node counts its characters in one place and its bytes in another
    pass(stallMs / 4);
  }
  assert.equal(served.destroyed, true);
});

test("a client whose answer was long in the making has its time to read it", async (t) => {
  const asked = Promise.withResolvers<ServerResponse>();
  const { connection, pass } = await start(t, (_request, response) => asked.resolve(response));
  const { client, served } = await connection(request);
  const response = await asked.promise;
  pass(20 * stallMs);
  served.cork(); // nothing of the answer is accepted yet
  response.write("at last");
  assert.ok(served.writableLength > 0);
  pass(stallMs / 4);
  assert.equal(served.destroyed, false);
  served.uncork();
  await read(client, 7);
});

test("a client that sends bytes, and reads no more than a few, is disconnected all the same", async (t) => {
  const asked = Promise.withResolvers<ServerResponse>();
  const { connection, pass } = await start(t, (upload, response) => {
    upload.resume();
    asked.resolve(response);
  });
  const { client, served } = await connection("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n");
  (await asked.promise).write(Buffer.alloc(128 * mebibyte));
  for (let round = 0; round < 6 && !served.destroyed; round++) {
    const before = served.bytesRead;
    client.write("x");
    await waitFor("the byte arrives", () => served.bytesRead > before);
    pass(stallMs / 4);
  }
  assert.equal(served.destroyed, true);
});

test("an exempt connection is not watched", async (t) => {
  const { connection, pass } = await start(t, () => {});
  const { served } = await connection();
  exemptFromStallWatch(served);
  pass(3 * stallMs);
  assert.equal(served.destroyed, false);
});
