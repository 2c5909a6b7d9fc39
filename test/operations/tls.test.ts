/** TLS on a started server, with a renewal of the certificate by SIGHUP, through an HTTPS client and the command line. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import https from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { connect, type TLSSocket } from "node:tls";
import { CommandLine } from "../cli/command-line.ts";
import { Server } from "../server.ts";

const folder = mkdtempSync(join(tmpdir(), "capsule-tls-"));
after(() => rmSync(folder, { recursive: true }));
const [certPath, keyPath] = [join(folder, "cert.pem"), join(folder, "key.pem")];
const ofPorts = { certPath: join(folder, "ports-cert.pem"), keyPath: join(folder, "ports-key.pem") };

/** Puts a new self-signed certificate of this name in place. */
function install(name: string, names = "IP:127.0.0.1", paths = { certPath, keyPath }): void {
  const [cert, key] = [join(folder, `${name}.pem`), join(folder, `${name}.key`)];
  const subject = ["-subj", `/CN=${name}`, "-addext", `subjectAltName=${names}`];
  const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  execFileSync("openssl", ["req", ...kind, ...subject, "-keyout", key, "-out", cert], { stdio: "pipe" });
  copyFileSync(cert, paths.certPath);
  copyFileSync(key, paths.keyPath);
}

/** Subject of the certificate for a port's name. */
async function shownForPort(url: string): Promise<string> {
  const servername = "80-cl-a.apps.example";
  const socket = connect({ host: "127.0.0.1", port: Number(new URL(url).port), servername, rejectUnauthorized: false });
  await once(socket, "secureConnect");
  const { CN } = socket.getPeerCertificate().subject;
  socket.destroy();
  return String(CN);
}

/** Subject of the certificate on a new connection that trusts this file only. */
function shown(url: string, ca: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = https.get(`${url}/healthz`, { ca: readFileSync(join(folder, ca)), agent: false }, (response) => {
      const { CN } = (response.socket as TLSSocket).getPeerCertificate().subject;
      response.resume().once("end", () => resolve(String(CN)));
    });
    request.once("error", reject);
  });
}

test("TLS is served, and SIGHUP renews the certificate unless it cannot be used", { timeout: 300_000 }, async () => {
  install("first");
  install("ports", "DNS:*.apps.example", ofPorts);
  const tls = {
    ...{ CAPSULE_TLS_CERT: certPath, CAPSULE_TLS_KEY: keyPath, CAPSULE_PORT_DOMAIN: "apps.example" },
    ...{ CAPSULE_PORT_TLS_CERT: ofPorts.certPath, CAPSULE_PORT_TLS_KEY: ofPorts.keyPath },
  };
  await using server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0", ...tls } });
  const { url, apiKey } = server;
  assert.match(url, /^https:/);
  assert.deepEqual([await shown(url, "first.pem"), await shownForPort(url)], ["first", "ports"]);
  const trusting = (ca: string) =>
    new CommandLine({ CAPSULE_URL: url, CAPSULE_API_KEY: apiKey, NODE_EXTRA_CA_CERTS: join(folder, ca) });
  const { stdout: id, ...created } = await trusting("first.pem").run(["create"]);
  assert.equal(created.code, 0, created.stderr);

  writeFileSync(keyPath, "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n");
  const refused = await server.signal("SIGHUP");
  assert.match(refused, /SIGHUP: the old certificate stays in use: .*key\.pem/);
  assert.doesNotMatch(refused, /SECRET/);
  assert.equal(await shown(url, "first.pem"), "first");

  install("second");
  install("astray", "DNS:apps.example", ofPorts);
  assert.match(await server.signal("SIGHUP"), /the old certificate stays in use: .* is not for \*\.apps\.example/);
  assert.deepEqual([await shown(url, "first.pem"), await shownForPort(url)], ["first", "ports"]);

  install("renewed", "DNS:*.apps.example", ofPorts);
  assert.match(await server.signal("SIGHUP"), /SIGHUP: the TLS files were read again/);
  assert.deepEqual([await shown(url, "second.pem"), await shownForPort(url)], ["second", "renewed"]);
  await assert.rejects(shown(url, "first.pem"), { code: "DEPTH_ZERO_SELF_SIGNED_CERT" });
  const { stdout, stderr, code } = await trusting("second.pem").run(["exec", id.trim(), "--", "echo", "over TLS"]);
  assert.deepEqual([stdout, code], ["over TLS\n", 0], stderr);
  const distrusted = await trusting("first.pem").run(["ls"]);
  assert.notEqual(distrusted.code, 0);
});
