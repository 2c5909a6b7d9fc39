/** Upgrades at ports' URLs, with servers in fake guests. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { Duplex } from "node:stream";
import { after, before, beforeEach, describe, test } from "node:test";
import { WebSocket, WebSocketServer } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { bytesOf, GuestServer, ok, PortUrls, parsed } from "../../../test/port-urls.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { ConnectionReset } from "../../agent/dial.ts";
import { earlyMaxBytes } from "./upgrade-body.ts";

const api = new Api({ port_connections_max: 2 });
const urls = new PortUrls(api);
let id = "";

before(() => urls.listen());
after(() => urls.close());
beforeEach(async () => {
  id = await api.capsule();
});

const host = () => `80-${id}.localhost`;
const upgrade = (headers: string[] = [], key: string | null = keys.red) =>
  bytesOf(host(), "/chat", ["Upgrade: my-protocol", ...headers], key).replace(
    "Connection: close",
    "Connection: keep-alive, Upgrade",
  );
const switching = "HTTP/1.1 101 Going on\r\nConnection: Upgrade\r\nUpgrade: my-protocol\r\nX-A: é\r\n\r\n";

/** A spliced connection: the client's socket, and the guest's. */
async function spliced(head = upgrade(), behind = "") {
  let isSwitched = false;
  const server = new GuestServer(api, id, 80, (connection, text) => {
    if (!text.includes("\r\n\r\n") || isSwitched) return;
    isSwitched = true;
    connection.write(Buffer.from(switching + behind, "latin1"));
  });
  const socket = await urls.connection();
  socket.write(head);
  const text = await urls.received(socket, (received) => received.includes("\r\n\r\n"));
  const guest = server.connections[0] as Duplex;
  const heard = () => (server.heard[0] as string).split(/\r\n\r\n(.*)/s)[1];
  return { server, socket, text, guest, heard };
}

describe("an upgrade", () => {
  test("is spliced as bytes, whatever its protocol", async () => {
    const { server, socket, text, guest, heard } = await spliced(
      `${upgrade(["Cookie: capsule_token=x"])}early `,
      "first",
    );
    assert.match(
      text,
      /^HTTP\/1\.1 101 Going on\r\nConnection: Upgrade\r\nUpgrade: my-protocol\r\nX-A: é\r\n\r\n(first)?$/,
    );
    assert.match(
      server.heard[0] as string,
      /^GET \/chat HTTP\/1\.1\r\nHost: .*\r\nConnection: Upgrade\r\nUpgrade: my-protocol\r\nX-For/,
    );
    assert.doesNotMatch(server.heard[0] as string, /token|capk/);
    socket.write("GET / HTTP/1.1\r\n\r\n");
    await waitFor("the guest has heard", () => heard() === "early GET / HTTP/1.1\r\n\r\n");
    guest.write("HTTP/1.1 400 no\r\n\r\n");
    await urls.received(socket, (received) => received.endsWith("HTTP/1.1 400 no\r\n\r\n"));
  });

  test("with a token in its query is served directly, without that", async () => {
    const target = `/chat?a&capsule_token=${urls.token(id, 80)}`;
    const asked = bytesOf(host(), target, ["Upgrade: my-protocol"], null).replace("close", "Upgrade");
    const { text, server } = await spliced(asked);
    assert.match(text, /^HTTP\/1\.1 101 /);
    assert.match(server.heard[0]!, /^GET \/chat\?a HTTP\/1\.1\r\n/);
  });

  test("goes where its Host says and nowhere else, and none in doubt", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const socketOf = `/v1/capsules/${id}/pty`;
    const answers = async (hosts: string[], target: string) => {
      const socket = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        `Sec-WebSocket-Key: ${btoa("x".repeat(16))}`,
      ];
      const lines = [
        `GET ${target} HTTP/1.1`,
        ...hosts.map((each) => `Host: ${each}`),
        `X-API-Key: ${keys.red}`,
        ...socket,
      ];
      return parsed(await urls.exchange([...lines, "", ""].join("\r\n"))).status;
    };
    for (const hosts of [["localhost", host()], [host(), "localhost"], []])
      assert.equal(await answers(hosts, socketOf), 400);
    assert.equal(await answers(["localhost"], `http://${host()}/`), 400);
    assert.equal(await answers([host()], `http://localhost${socketOf}`), 400);
    assert.equal(await answers(["x.localhost"], socketOf), 404);
    assert.equal(server.connections.length, 0);
    assert.equal(await answers([host()], socketOf), 200);
    assert.match(server.heard[0]!, /^GET \/v1\/capsules\/cl-[0-9a-z]+\/pty HTTP/, "the guest's server has it");
  });

  test("passes on the end of each direction alone, and a reset", async () => {
    const { socket, guest } = await spliced();
    guest.removeAllListeners("end");
    const ended = once(guest, "end");
    socket.end("last");
    await within("the client's end", ended);
    guest.end("answer");
    assert.match(await urls.received(socket, () => socket.readableEnded), /answer$/);
    const second = await spliced();
    second.guest.destroy();
    await waitFor("the client sees it", () => second.socket.resume().destroyed || second.socket.readableEnded);
    const third = await spliced();
    third.socket.resetAndDestroy();
    await waitFor("the guest sees it", () => third.guest.destroyed);
  });

  test("that the guest refuses is an answer, after which nothing more reaches the guest", async () => {
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.includes("\r\n\r\n"))
        connection.write("HTTP/1.1 426 No\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nno");
    });
    const secret = bytesOf(host(), "/second", ["Cookie: capsule_token=secret"]);
    const text = await urls.exchange(upgrade() + secret);
    assert.deepEqual([parsed(text).status, parsed(text).body], [426, "no"]);
    assert.ok(parsed(text).headers.includes("Connection: close"));
    assert.doesNotMatch(server.heard[0] as string, /second|secret/);
    assert.equal(server.connections.length, 1);
  });

  test("with a body sends the body, and what follows only after the 101", async () => {
    let answer = (_connection: Duplex) => {};
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.endsWith("hello")) answer(connection);
    });
    const post = upgrade(["Content-Length: 5"]).replace("GET", "POST");
    answer = (connection) => connection.end(ok);
    assert.equal(parsed(await urls.exchange(`${post}hello behind`)).status, 200);
    assert.match(server.heard[0] as string, /\r\nContent-Length: 5\r\n(.*\r\n)*\r\nhello$/);
    answer = (connection) => connection.write(switching);
    const socket = await urls.connection();
    socket.write(`${post}hel`);
    await waitFor("a part has come", () => server.heard[1]?.endsWith("hel") === true);
    socket.write("lo behind");
    await urls.received(socket, (text) => text.includes("101"));
    await waitFor("the rest has come", () => server.heard[1]?.endsWith("hello behind") === true);
  });

  test("with a body in chunks is an ordinary request", async () => {
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.endsWith("0\r\n\r\n")) connection.end(ok);
    });
    const post = upgrade(["Transfer-Encoding: chunked"]).replace("GET", "POST");
    const socket = await urls.connection();
    socket.write(`${post}5\r\nhello\r\n0\r\n\r\n`);
    assert.equal(parsed(await urls.received(socket, (text) => text.endsWith("ok"))).status, 200);
    assert.doesNotMatch(server.heard[0] as string, /upgrade/i);
  });

  test("carries a WebSocket of the package ws", async () => {
    const inside = createServer();
    const echo = new WebSocketServer({ server: inside });
    echo.on("connection", (socket) =>
      socket.on("message", (data, isBinary) => socket.send(data, { binary: isBinary })),
    );
    api.agent(id).servers.set(80, (connection) => inside.emit("connection", connection));
    const headers = { host: host(), cookie: `capsule_token=${urls.token(id, 80)}` };
    const socket = new WebSocket(`ws://127.0.0.1:${urls.port}/`, { headers });
    await within("it opens", once(socket, "open"));
    const large = Buffer.alloc(3 << 20, "ab");
    for (const message of ["text", large]) {
      socket.send(message);
      const [data] = (await within("the echo", once(socket, "message"))) as [Buffer];
      assert.ok(data.equals(Buffer.from(message)));
    }
    const closed = once(socket, "close");
    socket.close(1000);
    assert.equal((await within("it closes", closed))[0], 1000);
  });

  test("is cut when what opened it is shut, and at a pause", async () => {
    const byToken = await spliced(upgrade([`X-Capsule-Token: ${urls.token(id, 80)}`], null));
    api.service.capsules.networks.renewSecret("team-red", id);
    await waitFor("the guest sees it", () => byToken.guest.destroyed);
    const paused = await spliced();
    await api.become(id, "paused");
    await waitFor("the client sees it", () => paused.socket.resume().readableEnded || paused.socket.destroyed);
  });

  test("counts as a connection until it ends, and as activity when bytes move", async () => {
    const [first] = [await spliced(), await spliced()];
    assert.equal(api.isBusy(id), false, "a silent one holds no pause off");
    assert.equal(parsed(await urls.exchange(upgrade())).status, 429);
    const before = api.lastActiveAt(id);
    api.service.clock.advance(10);
    first.socket.write("x");
    await waitFor("it counts", () => api.lastActiveAt(id) !== before);
    first.socket.destroy();
    await waitFor("the guest sees it", () => first.guest.destroyed);
    await spliced();
  });

  test("with a body that waits for 100 gets it from the guest", async () => {
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.endsWith("\r\n\r\n")) connection.write("HTTP/1.1 100 Continue\r\n\r\n");
      if (text.endsWith("hello")) connection.end(ok);
    });
    const post = upgrade(["Content-Length: 5", "Expect: 100-continue"]).replace("GET", "POST");
    const socket = await urls.connection();
    socket.write(post);
    const first = await urls.received(socket, (text) => text.endsWith("\r\n\r\n"));
    assert.equal(first, "HTTP/1.1 100 Continue\r\n\r\n");
    socket.write("hello");
    assert.equal(parsed(await urls.received(socket, (text) => text.endsWith("ok"))).status, 200);
    assert.match(server.heard[0] as string, /\r\n\r\nhello$/);
  });

  test("of a client that goes gives its place back, also when it has sent bytes that nobody reads", async () => {
    const server = new GuestServer(api, id, 80, () => {});
    const post = upgrade(["Content-Length: 5"]).replace("GET", "POST");
    for (const [round, head] of [upgrade(), `${post}hello`].entries()) {
      const socket = await urls.connection();
      socket.write(head);
      await waitFor("it is dialled", () => server.heard[round]?.includes("\r\n\r\n") === true);
      socket.end("early");
      await waitFor("the guest sees it", () => server.connections[round]?.destroyed === true);
    }
  });

  test("is refused once 64 KiB have come behind the request, and gets as many through", async () => {
    let answer = (_connection: Duplex) => {};
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.endsWith("\r\n\r\n")) answer(connection);
    });
    const socket = await urls.connection();
    socket.write(upgrade());
    await waitFor("it is dialled", () => server.connections.length === 1);
    socket.write(Buffer.alloc(earlyMaxBytes + 1, "a"));
    const refused = parsed(await urls.received(socket, (text) => text.endsWith("}}")));
    assert.deepEqual([refused.status, refused.error.code], [400, "invalid_request"]);
    const guest = Promise.withResolvers<Duplex>();
    answer = guest.resolve;
    const second = await urls.connection();
    second.write(upgrade());
    const early = "b".repeat(earlyMaxBytes);
    second.write(early);
    (await within("the request", guest.promise)).write(switching);
    await urls.received(second, (text) => text.includes("101"));
    second.write("behind");
    await waitFor("all has come", () => server.heard[1]?.endsWith(`\r\n\r\n${early}behind`) === true);
  });

  test("of a client that goes while it waits gives its place back", async () => {
    const server = new GuestServer(api, id, 80, () => {});
    for (let round = 0; round < 3; round++) {
      const socket = await urls.connection();
      socket.write(upgrade());
      await waitFor("it is dialled", () => server.heard[round]?.includes("\r\n\r\n") === true);
      if (round % 2 === 0) socket.end();
      else socket.destroy();
      await waitFor("the guest sees it", () => server.connections[round]?.destroyed === true);
    }
  });
});

test("a reset that comes with the 101 ends the client's connection", async () => {
  api.agent(id).dial = async () => {
    const guest: Duplex = new Duplex({
      read() {},
      write(_bytes, _encoding, done) {
        done();
        guest.push(Buffer.from(switching, "latin1"));
        guest.destroy(new ConnectionReset());
      },
    });
    return guest.on("error", () => {});
  };
  const socket = await urls.connection();
  socket.write(upgrade());
  await within("the end", Promise.race([once(socket.resume(), "close"), once(socket, "end")]));
});

test("the server's stop ends a connection that waits for its 101", async () => {
  const own = new Api();
  const at = new PortUrls(own);
  await at.listen();
  const of = await own.capsule();
  const server = new GuestServer(own, of, 80, () => {});
  const socket = await at.connection();
  socket.write(bytesOf(`80-${of}.localhost`, "/", ["Upgrade: x"]).replace("close", "Upgrade"));
  await waitFor("it is dialled", () => server.heard[0]?.includes("\r\n\r\n") === true);
  await within("the stop", own.app.close());
  await waitFor("the guest sees it", () => server.connections[0]?.destroyed === true);
});

test("the server's stop ends upgraded connections", async () => {
  const own = new Api();
  const at = new PortUrls(own);
  await at.listen();
  const of = await own.capsule();
  const server = GuestServer.answering(own, of, 80, switching);
  const socket = await at.connection();
  socket.write(bytesOf(`80-${of}.localhost`, "/", ["Upgrade: x"]).replace("close", "Upgrade"));
  await at.received(socket, (text) => text.includes("101"));
  await within("the stop", own.app.close());
  await waitFor("the guest sees it", () => server.connections[0]?.destroyed === true);
});
