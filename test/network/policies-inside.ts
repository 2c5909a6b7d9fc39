/**
 * A server is killed between the steps of changes of a network, and starts with other grants and without `secret.key`: what the capsule's
 * row says and what the relay does agree in each of its lives. Runs in a network namespace (policies.test.ts).
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { renameSync } from "node:fs";
import { createServer as createHttpServer, get, type IncomingMessage, type RequestListener } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import { createServer, type Server as NetServer } from "node:net";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { StepName } from "../../src/host/steps.ts";
import type { TestCapsule } from "../client.ts";
import { World } from "../faults/world.ts";
import { TestAuthority } from "../relay/certificates.ts";
import { waitFor } from "../wait-for.ts";

const timeout = 900_000;
const host = "host.capsule.internal";
/** The first one is in every policy: a connection to it shows that the relay has the capsule. */
const ports = [7_000, 7_001, 7_002];
const web = [80, 443];
const grants = (granted: number[]) => granted.map((port) => `host:${port}`).join();
const allow = (...allowed: number[]) => allowed.map((port) => `${host}:${port}`);
const probePort = 8_000;

/** Answers each request with what becomes of connections to the ports, and of a request to port 80. */
const probe = `
import errno, http.server, json, socket, urllib.error, urllib.request
def connected(port):
    try: socket.create_connection(("192.0.0.1", port), 60).close()
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
    return "connected"
def asked():
    try:
        with urllib.request.urlopen("http://${host}/", timeout=60) as answer: return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as error: return f"{error.code} {error.read().decode()}"
    except OSError: return "none"
class Probe(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([*map(connected, ${JSON.stringify(ports)}), asked()]).encode())
http.server.HTTPServer(("127.0.0.1", ${probePort}), Probe).serve_forever()
`;

const closings: (() => void)[] = [];
let world: World;
/** The id of the capsule, which has envs too. */
let id = "";
const capsule = (): TestCapsule => world.capsule(id);
const network = async () => (await world.client.expect(200, "GET", `${capsule().path}/network`)).json;
const put = (json: object) => world.client.call("PUT", `${capsule().path}/network`, { json });

async function listening(server: NetServer, port: number): Promise<void> {
  await once(server.listen(port, "127.0.0.1"), "listening");
  closings.push(() => server.close());
}

before(
  async () => {
    execFileSync("ip", ["link", "set", "lo", "up"]);
    const authority = new TestAuthority();
    closings.push(() => authority[Symbol.dispose]());
    const tell: RequestListener = (request, response) =>
      response.setHeader("Connection", "close").end(`key ${request.headers["x-key"] ?? "none"}`);
    await listening(createHttpServer(tell), web[0]!);
    await listening(createHttpsServer(authority.sign(host), tell), web[1]!);
    for (const port of ports)
      await listening(
        createServer((socket) => socket.on("error", () => {}).end()),
        port,
      );
    const env = { CAPSULE_EGRESS_GRANT: grants([...web, ...ports]), NODE_EXTRA_CA_CERTS: authority.path };
    world = await World.start({ env });
    const first = { egress: "allowlist", allow: allow(ports[0]!) };
    ({ id } = await world.client.capsule({ network: first, envs: { OF_THE_TEST: "1" } }));
    assert.equal((await capsule().exec({ cmd: "python3", args: ["-c", probe], background: true })).status, 202);
  },
  { timeout },
);
after(async () => {
  await world?.[Symbol.asyncDispose]();
  for (const close of closings) close();
});

/** At the URL of the capsule's port. */
async function outcomes(): Promise<string[] | undefined> {
  const { hostname, port } = new URL(world.server.url);
  const headers = { host: `${probePort}-${id}.localhost:${port}`, "x-api-key": world.client.key };
  const [response] = (await once(get({ host: hostname, port, headers, agent: false }), "response")) as [
    IncomingMessage,
  ];
  let text = "";
  for await (const chunk of response) text += chunk;
  return response.statusCode === 200 ? JSON.parse(text) : undefined;
}

/** The capsule reaches what its network says; `answer`: to a request to port 80. */
async function assertAgrees(asked: { allow: string[]; inject?: { host: string }[] }, answer: RegExp): Promise<void> {
  const { effective, ...shown } = await network();
  assert.deepEqual(shown.allow, asked.allow);
  assert.deepEqual(
    shown.inject.map((rule: { host: string }) => rule.host),
    (asked.inject ?? []).map((rule) => rule.host),
  );
  const seen = await waitFor("the relay has the capsule", async () => {
    const found = await outcomes();
    return found?.[0] === "connected" && found;
  });
  const expected = ports.map((port) => (effective.allow.includes(`${host}:${port}`) ? "connected" : "EHOSTUNREACH"));
  assert.deepEqual(seen.slice(0, -1), expected);
  assert.match(seen.at(-1)!, answer);
}

const rule = (value: string | null) => ({ inject: [{ host, headers: { "X-Key": value } }] });
const list = (...allowed: number[]) => ({ egress: "allowlist", allow: allow(...allowed) });

/** Each is replaced by the next. */
const changes: [asked: { egress: string; allow: string[]; inject?: { host: string }[] }, answer: RegExp][] = [
  [{ ...list(7_000, 7_001, ...web), ...rule("one") }, /^200 key one$/],
  [{ ...list(7_000, 7_002, ...web), ...rule("two") }, /^200 key two$/],
  [list(7_000, 7_001, ...web), /^200 key none$/],
];

for (const step of ["network.committed", "network.obeyed"] satisfies StepName[]) {
  test(`after a kill at ${step} the new policy and the new rules hold`, { timeout }, async () => {
    await world.restart("SIGKILL", step);
    for (const [asked, answer] of changes) {
      await world.die(() => put(asked));
      await world.restart("SIGKILL", step);
      await assertAgrees(asked, answer);
    }
  });
}

test("grants of the start hold, also where it was killed at once, and the row keeps what was asked for", {
  timeout,
}, async () => {
  await world.restart("SIGKILL");
  const asked = list(...ports, ...web);
  assert.equal((await put(asked)).status, 200);
  const fewer = { CAPSULE_EGRESS_GRANT: grants([...web, 7_000, 7_002]) };
  await world.restart("SIGKILL", undefined, fewer);
  await assertAgrees(asked, /^200 key none$/);
  assert.ok(!(await network()).effective.allow.includes(`${host}:7001`));
  await world.startAgain("SIGKILL"); // and is killed before its relay has the capsule
  await world.restart("SIGKILL", undefined, fewer);
  await assertAgrees(asked, /^200 key none$/);
  await world.restart("SIGKILL");
  await assertAgrees(asked, /^200 key none$/);
  assert.deepEqual((await network()).effective.allow, asked.allow);
});

test("without secret.key requests of a rule are 502, and all else works but new commands and a resume, which need the envs", {
  timeout,
}, async () => {
  const asked = { ...list(7_000, 7_001, ...web), ...rule("three") };
  assert.equal((await put(asked)).status, 200);
  const file = join(world.server.dataDir, "secret.key");
  await world.server.kill("SIGKILL");
  renameSync(file, `${file}.kept`);
  await world.restart("SIGKILL");
  const lost = /^502 .*X-Key cannot be decrypted.*secret\.key/s;
  await assertAgrees(asked, lost);
  const later = { ...list(7_000, 7_002, ...web), ...rule(null) };
  assert.equal((await put(later)).status, 200);
  await assertAgrees(later, lost);
  await waitFor("it is shown", async () => {
    const { recent } = await network(); // without its last ones, where the relay does not answer in a second
    return recent.some((each: { reason: string; host: string }) => each.reason === "secret" && each.host === host);
  });
  const read = await world.client.call("POST", `${capsule().path}/files/read`, { json: { path: "/etc/hostname" } });
  assert.equal(read.status, 200);
  const ran = await capsule().exec({ cmd: "true", args: [] });
  assert.deepEqual([ran.status, ran.json.error.code], [409, "conflict"]);
  {
    await using other = await world.client.capsule({ network: list(7_000) });
    assert.equal(await other.sh("echo runs"), "runs");
  }
  await capsule().pause();
  const resumed = await world.client.call("POST", `${capsule().path}/resume`);
  assert.deepEqual([resumed.status, resumed.json.error.code], [409, "conflict"]);

  await world.server.kill("SIGKILL");
  renameSync(`${file}.kept`, file);
  await world.restart("SIGKILL");
  await capsule().resume();
  await assertAgrees(later, /^200 key three$/);
});
