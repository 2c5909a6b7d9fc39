/** One address can open a bounded number of connections, with and without TLS; those beyond are closed unread. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { Api } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";
import type { ServerOptions } from "../app.ts";
import { readCertificate } from "../tls.ts";

const max = 3;
const request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/** Opens connections from an address of 127.0.0.0/8 or ::1. */
async function listen(t: TestContext, options: Partial<ServerOptions> = {}, host = "127.0.0.1") {
  const api = new Api({ connections_per_address_max: max }, options);
  await api.app.listen({ host, port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  const sockets: Socket[] = [];
  t.after(async () => {
    for (const socket of sockets) socket.destroy();
    await api.app.close();
  });
  return async (localAddress: string): Promise<Socket> => {
    const accepted = once(api.app.server, "connection");
    const socket = connect({ port, host, localAddress }).on("error", () => {});
    sockets.push(socket);
    await accepted;
    return socket;
  };
}

async function isServed(socket: Socket): Promise<boolean> {
  const end = Promise.race([once(socket, "data"), once(socket, "close").then(() => undefined)]);
  socket.write(request);
  return (await end) !== undefined;
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
  const folder = mkdtempSync(join(tmpdir(), "connections-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const [certPath, keyPath] = [join(folder, "cert.pem"), join(folder, "cert.key")];
  const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"];
  execFileSync("openssl", ["req", ...kind, "-keyout", keyPath, "-out", certPath], { stdio: "pipe" });
  const open = await listen(t, { certificate: readCertificate({ certPath, keyPath }) });
  for (let i = 0; i < max; i++) await open("127.0.0.2");
  const refused = await open("127.0.0.2");
  await once(refused, "close");
  assert.equal(refused.bytesRead, 0);
});

test("connections of a declared proxy on this machine are not bounded", async (t) => {
  const open = await listen(t, { trustProxy: "loopback" });
  for (let i = 0; i < max + 2; i++) assert.equal(await isServed(await open("127.0.0.2")), true);
});
