/** Bytes of bodies that have arrived in part, or wait for their turn, count for their team until the body is parsed or given up. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect } from "node:net";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import { pieceMinBytes, ReceiveBudget, receivedMaxBytes } from "./access/receive-budget.ts";
import { BodyBuffer } from "./body-buffer.ts";

const mib = 1 << 20;

/** A listening server; `send` writes to a connection of its own. */
async function listening(t: TestContext) {
  const received = new ReceiveBudget();
  const api = new Api({}, { received });
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  const send = async (body: string, length = body.length, key: string = keys.red) => {
    const socket = connect(port, "127.0.0.1").setEncoding("utf8");
    t.after(() => socket.destroy());
    await once(socket, "connect");
    const headers = `X-API-Key: ${key}\r\nContent-Type: application/json\r\nContent-Length: ${length}`;
    socket.write(`POST /v1/capsules HTTP/1.1\r\nHost: x\r\n${headers}\r\n\r\n${body}`);
    return socket;
  };
  return { api, received, send };
}

test("beyond 128 MiB of a team a body is 429 with Retry-After; another team's is read", async (t) => {
  const { received, send } = await listening(t);
  const charge = received.open("team-red");
  charge.add(receivedMaxBytes);
  const [refused] = await once(await send("{}"), "data");
  assert.match(refused, /^HTTP\/1\.1 429 .*retry-after: 1\r\n.*"quota_exceeded"/is);
  assert.match((await once(await send("{}", 2, keys.blue), "data"))[0], /^HTTP\/1\.1 201 /);
  charge.release();
  assert.match((await once(await send("{}"), "data"))[0], /^HTTP\/1\.1 201 /);
  assert.equal(received.usedBytes, 0);
});

test("every end of a body gives its bytes back", async (t) => {
  const { api, received, send } = await listening(t);
  const isFree = () => received.usedBytes === 0;
  const answers: [body: string, status: number][] = [
    ["{}", 201],
    ["{", 400],
    ["[]", 400],
    [`{"vcpus":"${"x".repeat(100_000)}"}`, 400],
  ];
  for (const [body, status] of answers) {
    const [answer] = await once(await send(body), "data");
    assert.match(answer, new RegExp(`^HTTP/1.1 ${status} `));
    await waitFor(`the bytes of ${body.slice(0, 9)} are free`, isFree);
  }
  const cut = await send('{"a":"', mib);
  await waitFor("a part has arrived", () => received.usedBytes === pieceMinBytes);
  cut.destroy();
  await waitFor("a body that is cut off is free", isFree);
  const tooLarge = await send("x", api.limits.body_max_bytes + 1);
  await once(tooLarge, "data");
  assert.ok(isFree());
  tooLarge.destroy();
});

test("a body whose client leaves while it waits for its turn gives its bytes back", async (t) => {
  const { api, received, send } = await listening(t);
  t.mock.method(performance, "now", () => 1_000); // a large body's pause does not end
  const large = `{"ignored":"${"x".repeat(mib / 2)}"}`;
  assert.match((await once(await send(large), "data"))[0], /^HTTP\/1\.1 201 /);
  const waiting = await send(large);
  await waitFor("it has arrived", () => received.usedBytes >= large.length);
  waiting.destroy();
  await waitFor("its bytes are free", () => received.usedBytes === 0);
  assert.equal((await api.app.inject("/healthz")).statusCode, 200);
});

test("a body in chunks of one byte takes at most twice its bytes", () => {
  let charged = 0;
  const body = new BodyBuffer({
    add: (bytes) => {
      charged += bytes;
    },
  });
  const text = Buffer.from("0123456789".repeat(10_000));
  for (const byte of text) body.add(Buffer.of(byte));
  assert.deepEqual(body.bytes, text);
  assert.ok(charged <= 2 * text.length, `${charged} bytes`);
});
