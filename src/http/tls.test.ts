import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import https from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { connect, type TLSSocket } from "node:tls";
import { WebSocket } from "ws";
import { Api, keys } from "../../test/api.ts";
import { steadyClock } from "../../test/fakes/steady-clock.ts";
import { GuestServer, ok, PortUrls } from "../../test/port-urls.ts";
import { waitFor } from "../../test/wait-for.ts";
import { parsePortDomain } from "../network/port-domain.ts";
import { readCertificate, readCertificates, renewCertificate, requireSafeBinding, useForPorts } from "./tls.ts";

const folder = mkdtempSync(join(tmpdir(), "tls-"));
after(() => rmSync(folder, { recursive: true }));

/** A new self-signed certificate of this name, and its key. */
function make(name: string, names = "IP:127.0.0.1"): { certPath: string; keyPath: string } {
  const [certPath, keyPath] = [join(folder, `${name}.pem`), join(folder, `${name}.key`)];
  const subject = ["-subj", `/CN=${name}`, "-addext", `subjectAltName=${names}`];
  const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  execFileSync("openssl", ["req", ...kind, ...subject, "-keyout", keyPath, "-out", certPath], { stdio: "pipe" });
  return { certPath, keyPath };
}

/** Over a new connection: the reply, its headers, and the name in the server's certificate. */
function get(port: number, ca: Buffer, path: string) {
  return new Promise<{ status: number; headers: Record<string, unknown>; shown: string }>((resolve, reject) => {
    const headers = { "x-api-key": keys.red };
    const request = https.get({ host: "127.0.0.1", port, path, ca, headers, agent: false }, (response) => {
      const { CN } = (response.socket as TLSSocket).getPeerCertificate().subject;
      response.resume().once("end", () => {
        resolve({ status: response.statusCode ?? 0, headers: response.headers, shown: String(CN) });
      });
    });
    request.once("error", reject);
  });
}

describe("TLS", () => {
  test("requests and WebSockets are served over it, with HSTS; the certificate is renewed without a restart", async () => {
    const [first, second] = [make("first"), make("second")];
    const api = new Api({}, { certificate: readCertificate(first) });
    try {
      const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
      assert.match(url, /^https:/);
      const { port } = api.app.server.address() as AddressInfo;
      const ca = readFileSync(first.certPath);
      const { status, headers, shown } = await get(port, ca, "/v1/capsules");
      assert.deepEqual([status, shown], [200, "first"]);
      assert.match(String(headers["strict-transport-security"]), /^max-age=\d{7,}/);
      const id = await api.capsule();
      const socket = new WebSocket(`wss://127.0.0.1:${port}/v1/capsules/${id}/exec/stream`, {
        ca,
        headers: { "x-api-key": keys.red },
      });
      await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));

      renewCertificate(api.app, readCertificate(second)!);
      assert.equal((await get(port, readFileSync(second.certPath), "/healthz")).shown, "second");
      socket.send(JSON.stringify({ type: "start", cmd: "true" }));
      const code = await new Promise((resolve) => socket.once("close", resolve));
      assert.equal(code, 1000, "what was open goes on");
      await assert.rejects(fetch(`http://127.0.0.1:${port}/healthz`), "plain HTTP is not spoken there");
    } finally {
      await api.app.close();
    }
  });

  test("names of ports have their own certificate, and links to them give a cookie for TLS alone", async () => {
    const [first, second, third] = [make("own"), make("ports"), make("renewed")];
    const api = new Api({}, { certificate: readCertificate(first) });
    const urls = new PortUrls(api);
    try {
      await urls.listen();
      useForPorts(api.app, "localhost", readCertificate(second)!);
      const id = await api.capsule();
      const server = GuestServer.answering(api, id, 80, ok);
      const servername = `80-${id}.localhost`;
      const ask = async (name: string, path: string, headers = {}) => {
        const socket = connect({ host: "127.0.0.1", port: urls.port, servername: name, rejectUnauthorized: false });
        await once(socket, "secureConnect");
        const shown = String(socket.getPeerCertificate().subject.CN);
        const lines = Object.entries({ host: name, connection: "close", ...headers }).map((each) => each.join(": "));
        socket.write(`GET ${path} HTTP/1.1\r\n${lines.join("\r\n")}\r\n\r\n`);
        let text = "";
        for await (const chunk of socket) text += chunk;
        return { text, shown };
      };
      const token = urls.token(id, 80);
      const link = await ask(servername, `/a?capsule_token=${token}`);
      assert.equal(link.shown, "ports");
      assert.match(link.text, new RegExp(`^Location: https://${servername}/a\\r$`, "m"));
      assert.match(link.text, /^Set-Cookie: capsule_token=.*; HttpOnly; Secure; SameSite=None; Partitioned\r$/m);
      assert.match((await ask(servername, "/", { "x-capsule-token": token })).text, /ok$/);
      assert.match(server.heard[0] as string, /^X-Forwarded-Proto: https\r$/m);
      assert.equal((await ask("localhost", "/healthz")).shown, "own");
      useForPorts(api.app, "localhost", readCertificate(third)!);
      assert.equal((await ask(servername, "/")).shown, "renewed");
    } finally {
      await urls.close();
    }
  });

  test("a client that is silent after the handshake is disconnected", async (t) => {
    const clock = steadyClock(t);
    const pair = make("silent");
    const api = new Api({}, { certificate: readCertificate(pair), stallMs: 200 });
    try {
      await api.app.listen({ host: "127.0.0.1", port: 0 });
      const { port } = api.app.server.address() as AddressInfo;
      const silent = connect({ host: "127.0.0.1", port, ca: readFileSync(pair.certPath) });
      await once(silent, "secureConnect");
      silent.resume();
      await waitFor("it is disconnected", async () => {
        await clock.pass(50);
        return silent.closed;
      });
    } finally {
      await api.app.close();
    }
  });

  test("an error names the unusable files and does not quote them", () => {
    const { certPath, keyPath } = make("third");
    const broken = join(folder, "broken.key");
    writeFileSync(broken, "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n");
    assert.equal(readCertificate({ certPath: undefined, keyPath: undefined }), undefined);
    assert.throws(() => readCertificate({ certPath, keyPath: undefined }), /both.* CAPSULE_TLS_CERT/);
    assert.throws(() => readCertificate({ certPath, keyPath: undefined }, "CAPSULE_PORT_TLS"), /CAPSULE_PORT_TLS_KEY/);
    assert.throws(() => readCertificate({ certPath: join(folder, "none"), keyPath }), { code: "ENOENT" });
    assert.throws(
      () => readCertificate({ certPath, keyPath: broken }),
      (error: Error) => error.message.includes(broken) && !error.message.includes("SECRET"),
    );
    assert.throws(() => readCertificate({ certPath, keyPath: make("fourth").keyPath }), /cannot be used/);
  });

  test("a certificate for ports is used beside the server's own, and names all below the domain", () => {
    const domain = parsePortDomain("apps.example");
    const none = { tlsCert: undefined, tlsKey: undefined, portTlsCert: undefined, portTlsKey: undefined };
    const own = make("api", "DNS:capsule.example");
    const withOwn = { ...none, tlsCert: own.certPath, tlsKey: own.keyPath };
    const withPorts = (names: string, portDomain = domain) => {
      const { certPath, keyPath } = make("wild", names);
      return readCertificates({ ...withOwn, portTlsCert: certPath, portTlsKey: keyPath, portDomain });
    };
    const alone = { ...none, portTlsCert: own.certPath, portTlsKey: own.keyPath, portDomain: domain };
    assert.throws(() => readCertificates(alone), /CAPSULE_PORT_TLS_CERT is used beside CAPSULE_TLS_CERT/);
    const wrong = ["DNS:apps.example", "DNS:*.example", "DNS:80-cl-a.apps.example", "IP:127.0.0.1"];
    for (const names of wrong)
      assert.throws(() => withPorts(names), /CAPSULE_PORT_TLS_CERT .*wild\.pem is not for \*\.apps\.example/, names);
    const covering = withPorts("DNS:apps.example,DNS:*.Apps.Example");
    assert.deepEqual([covering.ofPorts !== undefined, covering.doubt], [true, undefined]);
    const outside = parsePortDomain("https://apps.example:8443");
    assert.throws(() => withPorts("DNS:apps.example", outside), /\*\.apps\.example/);
  });

  test("the server's own certificate that does not name the ports' domain is a doubt, unless a proxy is in front", () => {
    const own = (names: string, domain: string) => {
      const { certPath, keyPath } = make("both", names);
      const files = { tlsCert: certPath, tlsKey: keyPath, portTlsCert: undefined, portTlsKey: undefined };
      return readCertificates({ ...files, portDomain: parsePortDomain(domain) }).doubt;
    };
    assert.match(own("DNS:capsule.example", "apps.example") ?? "", /CAPSULE_TLS_CERT .*\*\.apps\.example.*_PORT_TLS_/);
    assert.equal(own("DNS:capsule.example,DNS:*.apps.example", "apps.example"), undefined);
    assert.equal(own("DNS:capsule.example", "localhost"), undefined, "the default is for this machine");
    assert.equal(own("DNS:capsule.example", "https://apps.example"), undefined);
  });

  test("without it only loopback addresses are allowed, unless plain HTTP is configured", () => {
    for (const host of ["127.0.0.1", "127.8.9.1", "::1", "localhost"]) requireSafeBinding(host, false, "loopback");
    for (const host of ["0.0.0.0", "::", "192.168.1.2", "example.com", "127.evil.example", "::ffff:10.0.0.1"]) {
      assert.throws(() => requireSafeBinding(host, false, "loopback"), /in the clear/, host);
      requireSafeBinding(host, true, "loopback");
      requireSafeBinding(host, false, "anywhere");
    }
  });
});
