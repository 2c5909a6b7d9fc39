/** `capsule network`, `url` and `ports`, and the network of `create`, at the real HTTP layer with a fake guest. */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { lineTo } from "../../test/cli/api-line.ts";
import { CommandLine } from "../../test/cli/command-line.ts";
import { FakeOutbound } from "../../test/fakes/fake-outbound.ts";
import { waitFor } from "../../test/wait-for.ts";

const isMac = process.platform === "darwin" && "its opener has another name";
const none = { egress: "none", allow: [], deny: [], public_ports: [], host_header: null, inject: [] };
const outbound = new FakeOutbound();
const api = new Api({}, {}, { outbound });
const line = lineTo(api);

const networkOf = async (id: string) => (await api.call("GET", `/v1/capsules/${id}`)).json.network;

test("create passes its network on", async () => {
  const options = ["--egress", "allowlist", "--allow", "PyPI.org", "--allow", "8.8.8.8:53", "--deny", "1.1.1.1"];
  const made = await line.run(["create", "--no-wait", ...options, "--public-port", "80", "--public-port", "8000"]);
  assert.equal(made.code, 0, made.stderr);
  assert.deepEqual(await networkOf(made.stdout.trim()), {
    ...none,
    ...{ egress: "allowlist", allow: ["pypi.org", "8.8.8.8:53"], deny: ["1.1.1.1"], public_ports: [80, 8_000] },
  });
});

test("network shows it; with an option it replaces all but host_header and inject", async () => {
  const id = await api.capsule("paused");
  const rules = (value: string | null) => [{ host: "api.example", headers: { "X-Key": value, "X-More": value } }];
  const json = { egress: "public", allow: ["a.example"], host_header: "localhost", inject: rules("secret") };
  await api.call("PUT", `/v1/capsules/${id}/network`, { json });
  const shown = await line.run(["network", id]);
  assert.equal(shown.code, 0, shown.stderr);
  assert.match(shown.stdout, /egress +public\n/);
  assert.match(shown.stdout, /injected +api\.example: X-Key, X-More\n/);
  assert.match(shown.stdout, /in effect +public, without a way out\n/);
  const replaced = await line.run(["network", "--json", id, "--public-port", "80"]);
  assert.deepEqual(JSON.parse(replaced.stdout).public_ports, [80]);
  assert.deepEqual(await networkOf(id), { ...none, public_ports: [80], host_header: "localhost", inject: rules(null) });
});

test("network lists what was reached, denied and in vain, each newest first", async () => {
  api.service.host.networkSocket = "/nowhere/net.sock";
  const id = await api.capsule();
  const at = "2026-11-28T12:00:00.000Z";
  outbound.known = { connectionsOpen: 3 };
  api.service.networkDecisions.add(id, [
    { at, verdict: "denied", reason: "not listed", host: "a.example", port: 443, count: 2 },
    { at, verdict: "allowed", reason: "", host: "b.example", port: 443, count: 1 },
    { at, verdict: "failed", reason: "dns", host: "c.example", count: 6 },
    { at, verdict: "denied", reason: "reserved", address: "10.0.0.1", count: 1 },
    { at, verdict: "allowed", reason: "", address: "1.1.1.1", port: 53, count: 3 },
  ]);
  const { stdout } = await line.run(["network", id]);
  const lines = stdout.split("\n").map((line) => line.trim().replace(/ +/g, " "));
  assert.deepEqual(lines.slice(-9), [
    "connections 0, of them 3 open",
    ...["1.1.1.1:53, 3 times", "b.example:443, once"],
    "bytes 0 out, 0 in",
    "denied 0",
    ...["10.0.0.1, reserved, once", "a.example:443, not listed, 2 times"],
    ...["failed c.example, dns, 6 times", ""],
  ]);
});

test("options that are none are refused before anything is done, and entries by the service with their place", async () => {
  const id = await api.capsule();
  for (const bad of [
    ["--egress", "all"],
    ["--public-port", "0"],
    ["--public-port", "http"],
  ]) {
    const { code, stderr } = await line.run(["network", id, ...bad]);
    assert.equal(code, 2, stderr);
    assert.ok(stderr.includes(bad[0]!), stderr);
  }
  const refused = await line.run(["network", id, "--allow", "a", "--allow", "::1"]);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /network\.allow\[1\]/);
  assert.deepEqual(await networkOf(id), none);
});

test("url prints a link for the time asked, in every status", async () => {
  const id = await api.capsule("stopped");
  const { code, stdout, stderr } = await line.run(["url", "--json", id, "8000", "--expires", "2m"]);
  assert.equal(code, 0, stderr);
  const link = JSON.parse(stdout);
  assert.ok(link.url.startsWith(`http://8000-${id}.localhost:`), link.url);
  assert.equal(Date.parse(link.expires_at), api.service.teams.now() + 120_000);
  const plain = await line.run(["url", id, "8000"]);
  assert.match(plain.stdout, /^http:\/\/8000-.*\?capsule_token=[A-Za-z0-9._~-]+\n$/);
  assert.equal((await line.run(["url", id, "http"])).code, 2);
});

test("url --open hands the link to the system's opener", { skip: isMac }, async (t) => {
  const id = await api.capsule();
  const folder = mkdtempSync(join(tmpdir(), "capsule-opener-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const [opener, opened] = [join(folder, "xdg-open"), join(folder, "opened")];
  writeFileSync(opener, `#!/bin/sh\necho "$1" > ${opened}.new && mv ${opened}.new ${opened}\n`, { mode: 0o755 });
  const withOpener = new CommandLine({ ...line.env, PATH: `${folder}:${line.env.PATH}` });
  const { code, stdout, stderr } = await withOpener.run(["url", id, "80", "--open"]);
  assert.equal(code, 0, stderr);
  await waitFor("the opener has run", () => existsSync(opened));
  assert.equal(readFileSync(opened, "utf8"), stdout);
});

test("ports lists each with its URL, and whether it is public", async () => {
  const id = await api.capsule();
  await api.call("PUT", `/v1/capsules/${id}/network`, { json: { public_ports: [80] } });
  api.agent(id).ports = async () => [
    { port: 80, address: "0.0.0.0", pid: 7, cmd: "nginx" },
    { port: 81, address: "::1", pid: undefined, cmd: "" },
  ];
  const { stdout } = await line.run(["ports", id]);
  const [, first = "", second = ""] = stdout.split("\n");
  assert.match(first, new RegExp(`^80 +0\\.0\\.0\\.0 +7 +nginx +yes +http://80-${id}`));
  assert.match(second, new RegExp(`^81 +::1 +- +- +no +http://81-${id}`));
});
