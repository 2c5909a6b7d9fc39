/** The socket of ports/{port}/tcp, with a fake guest. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { type AddressInfo, createConnection } from "node:net";
import type { Duplex } from "node:stream";
import { after, before, beforeEach, describe, test } from "node:test";
import { type RawData, WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { bytesOf, GuestServer, PortUrls } from "../../../test/port-urls.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { guestReplyMs } from "../client-gone.ts";

const api = new Api({ port_connections_max: 2 });
let port = 0;
let id = "";

before(async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  port = (api.app.server.address() as AddressInfo).port;
});
beforeEach(async () => {
  id = await api.capsule();
});
after(() => api.app.close());

function connect(to: string, key = keys.red): WebSocket {
  const url = `ws://127.0.0.1:${port}/v1/capsules/${id}/ports/${to}/tcp`;
  const socket = new WebSocket(url, { headers: { "x-api-key": key } });
  socket.on("error", () => {});
  return socket;
}

/** An open socket with what it received, and the server's end of the connection. */
async function opened() {
  const accepted = Promise.withResolvers<Duplex>();
  api.agent(id).servers.set(80, (connection) => accepted.resolve(connection));
  const socket = connect("80");
  const received: (string | Buffer)[] = [];
  socket.on("message", (data: RawData, isBinary: boolean) =>
    received.push(isBinary ? (data as Buffer) : data.toString()),
  );
  const closed = once(socket, "close") as Promise<[number]>;
  await within("the socket is open", once(socket, "open"));
  const server = await accepted.promise;
  const bytes = () => Buffer.concat(received.filter((each) => typeof each !== "string")).toString();
  const code = async () => (await within("the socket is closed", closed))[0];
  return { socket, received, server, bytes, code };
}

async function refusal(to: string, key = keys.red) {
  const socket = connect(to, key);
  const [, response] = (await within("the refusal", once(socket, "unexpected-response"))) as [unknown, IncomingMessage];
  let text = "";
  for await (const chunk of response) text += chunk;
  return { status: response.statusCode, ...JSON.parse(text).error };
}

describe("ports/{port}/tcp", () => {
  test("carries bytes and the end of each direction", async () => {
    const { socket, server, received, bytes, code } = await opened();
    let heard = "";
    server.on("data", (chunk) => {
      heard += chunk;
    });
    const ended = once(server, "end");
    socket.send(Buffer.from("ping"));
    await waitFor("the server has heard", () => heard === "ping");
    server.write("pong");
    server.end();
    await waitFor("the server's end", () => received.includes("end"));
    assert.equal(bytes(), "pong");
    socket.send(Buffer.from(" and more"));
    socket.send("end");
    await within("the client's end", ended);
    assert.equal(heard, "ping and more");
    assert.equal(await code(), 1000);
  });

  test("tells a reset, and resets for a client that goes", async () => {
    const first = await opened();
    first.server.destroy();
    assert.equal(await first.code(), 1011);
    const second = await opened();
    second.socket.terminate();
    await waitFor("the server sees it", () => second.server.destroyed);
    assert.deepEqual(second.received, []);
  });

  test("refuses other texts, and bytes behind the end", async () => {
    const first = await opened();
    first.socket.send("END");
    assert.equal(await first.code(), 1003);
    const second = await opened();
    second.socket.send("end");
    second.socket.send(Buffer.from("x"));
    assert.equal(await second.code(), 1003);
    assert.deepEqual([...first.received, ...second.received], []);
  });

  test("closes with the capsule's run, without an error message", async () => {
    const paused = await opened();
    await api.become(id, "paused");
    assert.equal(await paused.code(), 4409);
    id = await api.capsule();
    const destroyed = await opened();
    await api.service.capsules.destroy("team-red", id);
    assert.equal(await destroyed.code(), 4404);
    assert.deepEqual([...paused.received, ...destroyed.received], []);
  });

  test("names the ports that are listened on where nobody listens", async () => {
    api.agent(id).servers.set(8_080, () => {});
    const { status, code, details } = await refusal("81");
    assert.deepEqual([status, code, details.ports], [502, "port_closed", [8_080]]);
    assert.deepEqual(
      api.log.filter((line) => JSON.parse(line).level >= 50),
      [],
    );
    for (const odd of ["0", "65536", "080", "+80", "80x"]) assert.equal((await refusal(odd)).status, 400, odd);
  });

  test("has places, which a client that goes or is refused gives back", async () => {
    const [first] = [await opened(), await opened()];
    assert.equal((await refusal("80")).code, "quota_exceeded");
    first.socket.close();
    await waitFor("the server sees it", () => first.server.destroyed);
    for (let round = 0; round < 5; round++) assert.equal((await refusal("81")).code, "port_closed");
    await opened();
  });

  test("a server that resets at once is a refusal", async () => {
    api.agent(id).servers.set(80, (connection) => connection.destroy());
    const socket = connect("80");
    const outcome = Promise.race([
      once(socket, "unexpected-response").then(([, response]) => (response as IncomingMessage).statusCode),
      once(socket, "close").then(([code]) => code),
    ]);
    assert.ok([502, 1011].includes((await within("its end", outcome)) as number));
  });

  test("another team, and no key, learn nothing", async () => {
    api.agent(id).servers.set(80, () => assert.fail("it was dialled"));
    assert.equal((await refusal("80", keys.blue)).status, 404);
    assert.equal((await refusal("80", "capk_none")).status, 401);
  });

  test("a ticket for it opens it, once", async () => {
    const server = new GuestServer(api, id, 80, () => {});
    const path = `/v1/capsules/${id}/ports/80/tcp`;
    const { json } = await api.call("POST", "/v1/ws-tickets", { json: { path } });
    const by = () => new WebSocket(`ws://127.0.0.1:${port}${path}?ticket=${json.ticket}`).on("error", () => {});
    const socket = by();
    await within("it is open", once(socket, "open"));
    const [, response] = (await within("the refusal", once(by(), "unexpected-response"))) as [unknown, IncomingMessage];
    assert.equal(response.resume().statusCode, 401);
    assert.equal(server.connections.length, 1);
    socket.close();
  });

  test("neither a token nor a public port opens it", async () => {
    api.agent(id).servers.set(80, () => assert.fail("it was dialled"));
    const urls = new PortUrls(api);
    urls.setNetwork(id, { publicPorts: [80] });
    const token = urls.token(id, 80);
    const path = `/v1/capsules/${id}/ports/80/tcp`;
    for (const [target, headers] of [
      [path, {}],
      [path, { "X-Capsule-Token": token }],
      [path, { Cookie: `capsule_token=${token}` }],
      [`${path}?capsule_token=${token}`, {}],
    ] as const) {
      const socket = new WebSocket(`ws://127.0.0.1:${port}${target}`, { headers });
      socket.on("error", () => {});
      const [, response] = (await within("the refusal", once(socket, "unexpected-response"))) as [
        unknown,
        IncomingMessage,
      ];
      assert.equal(response.resume().statusCode, 401);
    }
  });

  test("has its places in common with requests at the port's URL", async (t) => {
    await opened();
    const server = new GuestServer(api, id, 8_080, () => {});
    const client = createConnection(port, "127.0.0.1", () => void client.write(bytesOf(`8080-${id}.localhost`, "/")));
    t.after(() => client.destroy());
    await waitFor("the request is dialled", () => server.connections.length === 1);
    assert.equal((await refusal("80")).code, "quota_exceeded");
  });

  test("an open socket has no deadline of its request", async (t) => {
    const begun = t.mock.method(globalThis, "setTimeout");
    const ended = t.mock.method(globalThis, "clearTimeout");
    await opened();
    const cleared = new Set(ended.mock.calls.map((call) => call.arguments[0]));
    const deadlines = begun.mock.calls.filter((call) => call.arguments[1] === guestReplyMs);
    assert.ok(deadlines.length > 0);
    for (const { result } of deadlines) assert.ok(cleared.has(result));
  });

  test("bytes that move count as activity", async () => {
    const { socket, server } = await opened();
    server.resume();
    const seen = () => api.lastActiveAt(id);
    const before = seen();
    socket.send(Buffer.from("x"));
    await waitFor("it counts", () => seen() !== before);
  });
});
