/**
 * One address can open a bounded number of connections, with and without TLS; those beyond are closed unread. A connection
 * without a valid key is kept for a minute, and makes room when the server is nearly full, as do those of the largest team.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import type { Server } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { connect as connectTls } from "node:tls";
import { Api, keys } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { parseProxies } from "../../network/proxies.ts";
import type { Limits } from "../../wire/limits.ts";
import type { ServerOptions } from "../app.ts";
import { type Certificate, readCertificate } from "../tls.ts";

const max = 3;
const request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
const keyed = `GET /v1/capsules HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ${keys.red}\r\n\r\n`;

/** Opens connections from an address of 127.0.0.0/8 or ::1. */
async function listen(t: TestContext, options: Partial<ServerOptions> = {}, host = "127.0.0.1") {
  const [, open] = await listening(t, options, { connections_per_address_max: max }, host);
  return open;
}

async function listening(
  t: TestContext,
  options: Partial<ServerOptions>,
  limits: Partial<Limits> = {},
  host = "127.0.0.1",
): Promise<[Api, (address: string) => Promise<Socket>]> {
  const api = new Api(limits, options);
  await api.app.listen({ host, port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  const sockets: Socket[] = [];
  t.after(async () => {
    for (const socket of sockets) socket.destroy();
    await api.app.close();
  });
  const open = async (localAddress: string): Promise<Socket> => {
    const accepted = once(api.app.server, "connection");
    const socket = connect({ port, host, localAddress }).on("error", () => {});
    sockets.push(socket);
    await accepted;
    return socket;
  };
  return [api, open];
}

function certificate(t: TestContext): Certificate | undefined {
  const folder = mkdtempSync(join(tmpdir(), "connections-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const [certPath, keyPath] = [join(folder, "cert.pem"), join(folder, "cert.key")];
  const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"];
  execFileSync("openssl", ["req", ...kind, "-keyout", keyPath, "-out", certPath], { stdio: "pipe" });
  return readCertificate({ certPath, keyPath });
}

async function isServed(socket: Socket, text = request): Promise<boolean> {
  return (await answer(socket, text)) !== undefined;
}

/** undefined: the connection is closed. */
async function answer(socket: Socket, text: string): Promise<string | undefined> {
  if (socket.closed) return undefined;
  const end = Promise.race([once(socket, "data"), once(socket, "close").then(() => undefined)]);
  socket.write(text);
  return (await end)?.toString();
}

test("an address beyond its bound is refused; another is served, and a closed connection makes room", async (t) => {
  const open = await listen(t);
  const first = [];
  for (let i = 0; i < max; i++) first.push(await open("127.0.0.2"));
  assert.equal(await isServed(await open("127.0.0.2")), false);
  assert.equal(await isServed(await open("127.0.0.3")), true);
  const [one] = first as [Socket];
  assert.equal(await isServed(one), true);
  one.destroy();
  // The server notices the end of that connection in a later turn of its event loop.
  await waitFor("there is room again", async () => isServed(await open("127.0.0.2")));
});

test("all addresses of an IPv6 /64 network share a bound", async (t) => {
  const open = await listen(t, {}, "::1");
  for (let i = 0; i < max; i++) await open("::1");
  assert.equal(await isServed(await open("::1")), false);
});

test("with TLS it is refused before the handshake", async (t) => {
  const open = await listen(t, { certificate: certificate(t) });
  for (let i = 0; i < max; i++) await open("127.0.0.2");
  const refused = await open("127.0.0.2");
  await once(refused, "close");
  assert.equal(refused.bytesRead, 0);
});

test("connections of a declared proxy on this machine are not bounded", async (t) => {
  const open = await listen(t, { proxies: parseProxies("loopback") });
  for (let i = 0; i < max + 2; i++) assert.equal(await isServed(await open("127.0.0.2")), true);
});

/** The idle times that the header tells and that the server keeps, after an answer. */
async function idleTimes(
  open: (address: string) => Promise<Socket>,
  requests: string[],
  server: Server,
  address = "127.0.0.1",
) {
  const accepted = once(server, "connection") as Promise<[Socket]>;
  const socket = await open(address);
  const [served] = await accepted;
  const told: (string | undefined)[] = [];
  for (const text of requests) {
    const head = await answer(socket, text.replace("GET", "HEAD")); // one chunk
    told.push(/^keep-alive: timeout=(\d+)/im.exec(head ?? "")?.[1]);
  }
  return { told, keptMs: served.timeout };
}

test("an idle connection is kept for 65 s, and for 61 minutes once it has shown a valid key", async (t) => {
  const [api, open] = await listening(t, {});
  const wrong = keyed.replace(keys.red, "capk_wrong");
  const { server } = api.app;
  assert.deepEqual(await idleTimes(open, [request, wrong], server), { told: ["65", undefined], keptMs: 66_000 });
  const { told, keptMs } = await idleTimes(open, [request, keyed, request], server);
  assert.deepEqual([told, keptMs], [["65", "3660", "3660"], 3_661_000]);
  const health = request.replace("\r\n\r\n", `\r\nVia: a proxy\r\nX-API-Key: ${keys.red}\r\n\r\n`);
  assert.deepEqual(await idleTimes(open, [health], server), { told: ["3660"], keptMs: 3_661_000 });
});

test("of declared addresses alone connections are not bounded, and are kept for 61 minutes", async (t) => {
  const options = { proxies: parseProxies("127.0.0.2,10.0.0.0/8") };
  const [api, open] = await listening(t, options, { connections_per_address_max: max });
  for (let i = 0; i < max + 2; i++) assert.equal(await isServed(await open("127.0.0.2")), true);
  assert.deepEqual(await idleTimes(open, [request], api.app.server, "127.0.0.2"), {
    told: ["3660"],
    keptMs: 3_661_000,
  });
  assert.deepEqual(await idleTimes(open, [request], api.app.server), { told: ["65"], keptMs: 66_000 });
  for (let i = 1; i < max; i++) assert.equal(await isServed(await open("127.0.0.1")), true);
  assert.equal(await isServed(await open("127.0.0.1")), false);
});

test("all connections of a declared proxy are kept for 61 minutes", async (t) => {
  const [api, open] = await listening(t, { proxies: parseProxies("loopback") });
  assert.deepEqual(await idleTimes(open, [request], api.app.server), { told: ["3660"], keptMs: 3_661_000 });
});

test("a connection is not ended for its idle time while a request that was sent with the first one is answered", async (t) => {
  const [api, open] = await listening(t, {});
  const id = await api.capsule("starting");
  const accepted = once(api.app.server, "connection") as Promise<[Socket]>;
  const socket = await open("127.0.0.1");
  const [served] = await accepted;
  socket.write(keyed + keyed.replace("/v1/capsules", `/v1/capsules/${id}?wait=running&timeout=60`));
  await once(socket, "data");
  await waitFor("the second request waits", () => api.waits === 1);
  assert.equal(served.timeout ?? 0, 0);
});

for (const isTls of [false, true]) {
  test(`a nearly full server closes idle connections without a valid key${isTls ? ", with TLS" : ""}`, async (t) => {
    const limits = { connections_max: 10, connections_per_address_max: 10, connections_per_sec: 1_000_000 };
    const [api, openRaw] = await listening(t, isTls ? { certificate: certificate(t) } : {}, limits);
    const open = async (address: string) => {
      const raw = await openRaw(address);
      if (!isTls) return raw;
      const socket = connectTls({ socket: raw, rejectUnauthorized: false });
      await once(socket, "secureConnect");
      return socket;
    };
    const known = await open("127.0.0.1");
    assert.ok(await isServed(known, keyed));
    const keyless: Socket[] = [];
    for (let i = 0; i < 30; i++) {
      const socket = await open("127.0.0.2");
      assert.ok(await isServed(socket), `connection ${i}`);
      keyless.push(socket.resume());
    }
    await waitFor("the others are closed", () => keyless.filter(({ closed }) => !closed).length === 8);
    assert.deepEqual(
      keyless.slice(-8).map(({ closed }) => closed),
      Array(8).fill(false),
    );
    assert.ok(await isServed(known, keyed), "it has shown a valid key");
    for (let i = 0; i < 7; i++) assert.ok(await isServed(await open("127.0.0.3"), keyed), `client ${i}`);
    const isLastOpen = () => keyless.filter(({ closed }) => !closed).length === 1;
    await waitFor("the others keep the places in which clients show their keys", isLastOpen);
    known.resume();
    for (let i = 0; i < 3; i++) {
      const blue = await open("127.0.0.4");
      assert.ok(await isServed(blue, keyed.replace(keys.red, keys.blue)), `client ${i} of another team`);
    }
    await waitFor("the largest team has made room", () => known.closed);
    assert.ok(isLastOpen());
    assert.equal(await connectionsOf(api.app.server), 9);
  });
}

async function connectionsOf(server: Server): Promise<number> {
  return new Promise((resolve, reject) =>
    server.getConnections((error, count) => (error === null ? resolve(count) : reject(error))),
  );
}
