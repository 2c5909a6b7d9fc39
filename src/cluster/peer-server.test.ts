/** Hostile hosts and clients at the peer port, and hosts that do not answer. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { request as send } from "node:http";
import { type AddressInfo, connect as connectTcp } from "node:net";
import { after, before, test } from "node:test";
import { type ConnectionOptions, connect, createServer, type TLSSocket } from "node:tls";
import { Api, keys } from "../../test/api.ts";
import { FakeCluster } from "../../test/fakes/fake-cluster.ts";
import { TcpLink } from "../../test/fakes/tcp-link.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { encodeCaller } from "../http/forwarding/caller-header.ts";
import { peerKey, peerTls } from "./peer-keys.ts";

const cluster = new FakeCluster();
const onA = cluster.join("a", () => a.service.store);
const onB = cluster.join("b", () => b.service.store);
const a: Api = new Api({}, { forwarding: onA.forwarder });
const b: Api = new Api({}, { forwarding: onB.forwarder });
let peerPort = 0;

before(async () => {
  for (const { app } of [a, b]) await app.listen({ host: "127.0.0.1", port: 0 });
  await Promise.all([onA.open(), onB.open()]);
  peerPort = cluster.ports.get("a") as number;
});

after(() => Promise.all([a.app.close(), b.app.close()]));

const options = (secret: Uint8Array, from = "b", to = "a"): ConnectionOptions => ({
  ...{ ...peerTls, host: "127.0.0.1", port: peerPort, checkServerIdentity: () => undefined },
  pskCallback: () => ({ psk: peerKey(secret, from, to), identity: from }),
});

/** Resolves with the connection, or the code of the error. */
async function handshake(how: ConnectionOptions): Promise<TLSSocket | string> {
  const socket = connect(how);
  try {
    await within("the handshake", once(socket, "secureConnect"));
    return socket;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? "closed";
  }
}

async function authenticated(): Promise<TLSSocket> {
  const socket = await handshake(options(cluster.secret));
  assert.ok(typeof socket !== "string", String(socket));
  return socket.on("error", () => {});
}

/** All that the peer port sends until it closes or `isEnough`. */
async function received(socket: TLSSocket, isEnough: (text: string) => boolean = () => false): Promise<string> {
  let text = "";
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString("latin1");
  });
  await waitFor("the answer", () => isEnough(text) || socket.closed || socket.readableEnded);
  return text;
}

const identity = { teamId: "team-red", keyId: "key-red", keyName: "first", team: "red" };
const caller = { identity, address: "192.0.2.7", remote: "192.0.2.7", requestId: "e".repeat(32) };
const head = (path: string, headers: string[]) =>
  [`GET ${path} HTTP/1.1`, "Host: a", "Connection: close", ...headers, "", ""].join("\r\n");
const callerLine = `X-Capsule-Caller: ${encodeCaller(caller)}`;

/** A request to b for a capsule of a. */
function ask(path: string, method = "GET"): Promise<number> {
  const { port } = b.app.server.address() as AddressInfo;
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const message = send({ port, path, method, agent: false, headers: { "x-api-key": keys.red } }, (answer) => {
    answer.resume().once("end", () => resolve(answer.statusCode as number));
  });
  message.on("error", reject).end();
  return promise;
}

test("a wrong secret, none, another host's key and plain bytes are refused in the handshake, and logged once", async () => {
  const wrong = Buffer.alloc(32, 6);
  assert.match(String(await handshake(options(wrong))), /BAD_RECORD_MAC|ALERT/);
  assert.match(String(await handshake(options(cluster.secret, "b", "c"))), /BAD_RECORD_MAC|ALERT/);
  const { pskCallback: _, ...certified } = options(wrong);
  assert.notEqual(typeof (await handshake({ ...certified, ciphers: "DEFAULT", rejectUnauthorized: false })), "object");
  const plain = connectTcp({ host: "127.0.0.1", port: peerPort }).on("error", () => {});
  plain.write(head("/healthz", [callerLine]));
  await within("plain bytes are cut off", once(plain.resume(), "close"));
  assert.equal(cluster.warnings.length, 1);
  assert.equal(onA.server().connectionsOf("b"), 0);
});

test("unfinished handshakes of one address keep no other address out", async () => {
  const unproven = Array.from({ length: 256 }, () =>
    connectTcp({ host: "127.0.0.1", port: peerPort, localAddress: "127.0.0.2" }).on("error", () => {}),
  );
  await Promise.all(unproven.map((each) => within("one connects", once(each, "connect"))));
  (await authenticated()).destroy();
  for (const each of unproven) each.destroy();
});

test("a host is answered as its caller, whom only the peer port believes", async () => {
  const id = await a.capsule();
  const socket = await authenticated();
  socket.write(head(`/v1/capsules/${id}`, [callerLine]));
  const text = await received(socket);
  assert.match(text, /^HTTP\/1\.1 200 OK\r\nx-request-id: e{32}\r\n/);
  const lines = a.log.filter((line) => line.includes("e".repeat(32)));
  assert.match(lines.join(""), /"key":"key-red"/);
});

test("without a caller, with two, and with what is none, a host is 400", async () => {
  const id = await a.capsule();
  const odd = [
    [],
    [callerLine, callerLine],
    ["X-Capsule-Caller: e30"],
    ["X-Capsule-Caller: \u00e9"],
    [
      `X-Capsule-Caller: ${Buffer.from('{"identity":{"teamId":1},"address":"","remote":"","requestId":""}').toString("base64url")}`,
    ],
  ];
  for (const lines of odd) {
    const socket = await authenticated();
    socket.write(head(`/v1/capsules/${id}`, [...lines, `X-API-Key: ${keys.red}`]), "latin1");
    assert.match(await received(socket), /^HTTP\/1\.1 400 /, lines.join());
  }
});

test("a capsule that is not here is 421, without a lookup: there is no second hop", async () => {
  const before = onA.holders.statements;
  const there = await b.capsule();
  for (const id of [there, `cl-${"z".repeat(25)}`, "a-name"]) {
    const socket = await authenticated();
    socket.write(head(`/v1/capsules/${id}`, [callerLine]));
    assert.match(await received(socket), /^HTTP\/1\.1 421 .*x-capsule-misdirected: e{32}\r\n/is);
  }
  assert.equal(onA.holders.statements, before);
});

test("a head beyond the bound is cut off, and an endless body is refused at its limit", async () => {
  const id = await a.capsule();
  const long = await authenticated();
  long.write(head(`/v1/capsules/${id}`, [callerLine, `X-Long: ${"x".repeat(30_000)}`]));
  assert.equal(await received(long), "");
  const endless = await authenticated();
  const lines = ["Host: a", callerLine, "Content-Type: application/json", "Transfer-Encoding: chunked", "", ""];
  endless.write(`POST /v1/capsules/${id}/exec HTTP/1.1\r\n${lines.join("\r\n")}`);
  const chunk = Buffer.alloc(64 * 1024, "1");
  const frame = Buffer.concat([Buffer.from("10000\r\n"), chunk, Buffer.from("\r\n")]);
  const pump = () => {
    while (!endless.destroyed && endless.writable && endless.write(frame));
  };
  endless.on("drain", pump);
  pump();
  assert.match(await received(endless, (text) => text.includes("too_large")), /HTTP\/1\.1 102 .*HTTP\/1\.1 413 /s);
  endless.destroy();
});

test("a host at another one's address is not believed: the request is 503, and nothing was sent to it", async () => {
  const id = await a.capsule();
  cluster.ports.set("a", cluster.ports.get("b") as number);
  const asked = ask(`/v1/capsules/${id}`);
  assert.equal(await within("the answer", asked), 503);
  cluster.ports.set("a", peerPort);
});

test("a host that never answers is given up when it has expired and takes no connection either", async () => {
  const id = await a.capsule();
  const heard = new Set<object>();
  await using silent = createServer(
    { ...peerTls, pskCallback: () => peerKey(cluster.secret, "b", "a"), handshakeTimeout: 5_000 },
    (socket) => void socket.on("error", () => {}).on("data", () => heard.add(socket)),
  ).listen(0, "127.0.0.1");
  await once(silent, "listening");
  await using link = await TcpLink.to((silent.address() as AddressInfo).port);
  cluster.ports.set("a", link.port);
  const [read, changed] = [ask(`/v1/capsules/${id}`), ask(`/v1/capsules/${id}/pause`, "POST")];
  changed.catch(() => {});
  await waitFor("the requests are with the host", () => heard.size === 2);
  cluster.expired.add("a");
  const before = link.connections;
  await waitFor("it is asked whether it is there", () => link.connections > before);
  link.swallow(); // from now on it is not
  assert.equal(await within("the read is refused", read), 503);
  await assert.rejects(within("the change's connection ends", changed), /socket hang up|ECONNRESET/);
  cluster.expired.delete("a");
  cluster.ports.set("a", peerPort);
});

test("a question for a holder is answered by the rows of this host, and one that is none with 400", async () => {
  const id = await a.capsule();
  const textOf = (...question: unknown[]) => Buffer.from(JSON.stringify(question)).toString("base64url");
  for (const [question, status] of [
    [textOf("team-red", id), 204],
    [textOf(null, id), 204],
    [textOf("team-blue", id), 404],
    [textOf("team-red", "no-such-name"), 404],
    [textOf("team-red"), 400],
    [textOf(1, id), 400],
    ["", 400],
    ["x", 400],
    ["e".repeat(2_000), 400],
  ] as const) {
    const socket = await authenticated();
    socket.write(head("/", [`X-Capsule-Question: ${question}`]));
    assert.match(await received(socket), new RegExp(`^HTTP/1.1 ${status} `), question);
  }
});
