/** Statements, objects and requests to other hosts that each action costs, without a time in it. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { WebSocket } from "ws";
import { Bucket } from "../../src/bucket/bucket.ts";
import { SealedBucket } from "../../src/bucket/sealed-bucket.ts";
import { PeerLinks } from "../../src/cluster/peer-links.ts";
import { keys } from "../api.ts";
import { FakeBucket } from "../fakes/fake-bucket.ts";
import { FakeFolders } from "../fakes/fake-folders.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeObjects } from "../fakes/fake-objects.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { within } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const path = "/v1/capsules";
const asked = { "x-api-key": keys.red };

/** Hosts a and b of a cluster with a bucket, and what both have sent since the last look. No clock moves by itself. */
async function twoHosts(t: TestContext) {
  const beds = new AsyncDisposableStack();
  const database = beds.use(await clusterDatabase(server));
  await addTeams(database);
  let [objects, links] = [0, 0];
  const all = new FakeObjects();
  all.onRequest = () => {
    objects += 1;
  };
  const sealed = new SealedBucket(new Bucket(all), { number: 1, key: Buffer.alloc(32, 1) });
  const checkpoints = new FakeBucket();
  const host = async (name: string) => {
    const machine = new FakeHost();
    const folders = beds.use(new FakeFolders(machine));
    const [uploads, files] = [new FakeUploads(machine, checkpoints.checkpoints), checkpoints.filesOf(machine)];
    return beds.use(await hostOfCluster(database, name, { machine, uploads, files, bucket: { sealed, folders } }));
  };
  const [a, b] = [await host("a"), await host("b")];
  for (const each of [a, b, a]) await each.second(); // it knows the other one, and has compared its capsules after the start
  for (const method of ["take", "probe"] as const) {
    const pass = PeerLinks.prototype[method] as (...of: unknown[]) => unknown;
    t.mock.method(PeerLinks.prototype, method, function (this: PeerLinks, ...of: unknown[]) {
      links += 1;
      return pass.apply(this, of);
    });
  }
  let before = [0, 0];
  const look = () => {
    const now = [a, b].map(({ sql }) => sql.statements);
    const sent = { a: now[0]! - before[0]!, b: now[1]! - before[1]!, objects, links };
    before = now;
    [objects, links] = [0, 0];
    return sent;
  };
  look();
  return { a, b, look, [Symbol.asyncDispose]: () => beds.disposeAsync() };
}

const nothing = { a: 0, b: 0, objects: 0, links: 0 };

/** The actions of a program in its capsule, over HTTP and by sockets. Resolves when all of them are over. */
async function used(host: FakeHostOfCluster, id: string, at: string, onDone: (what: string) => void): Promise<void> {
  const parts = ['path"\r\n\r\n/root/f', `file"; filename="f"\r\n\r\ntext`];
  const form = parts.map((part) => `--x\r\ncontent-disposition: form-data; name="${part}\r\n`).join("");
  const ask = async (status: number, method: "GET" | "POST" | "DELETE", suffix: string, json?: unknown) => {
    const answer = await host.call(method, `${path}/${id}${suffix}`, json);
    assert.equal(answer.status, status, `${method} ${suffix} ${JSON.stringify(answer.json)}`);
    onDone(`${method} ${suffix}`);
  };
  await ask(200, "GET", "");
  await ask(204, "POST", "/ping");
  await ask(200, "POST", "/exec", { cmd: "echo", args: ["x"] });
  await ask(200, "GET", "/processes");
  await ask(204, "DELETE", "/processes/500");
  for (const [suffix, type, payload] of [
    ["/files/write", "multipart/form-data; boundary=x", `${form}--x--\r\n`],
    ["/files/read", "application/json", '{"path":"/root/f"}'],
  ] as const) {
    const headers = { ...asked, "content-type": type };
    const answer = await host.app.inject({ method: "POST", url: `${path}/${id}${suffix}`, payload, headers });
    assert.ok(answer.statusCode < 300, answer.body);
    onDone(suffix);
  }
  for (const suffix of ["/exec/stream", "/pty"]) {
    const socket = new WebSocket(`ws://${at}${path}/${id}${suffix}`, { headers: asked });
    await within(`${suffix} opens`, once(socket, "open"));
    const message = once(socket, "message");
    socket.send(JSON.stringify({ type: "start", cmd: "echo", args: ["x"] }));
    await within(`a message of ${suffix}`, message);
    const closed = once(socket, "close");
    socket.terminate();
    await closed;
    onDone(suffix);
  }
}

test("on its holder a capsule is used without a statement, an object or a request to a host", { skip }, async (t) => {
  await using cluster = await twoHosts(t);
  const { a, look } = cluster;
  const id = await created(a);
  await a.app.listen({ host: "127.0.0.1", port: 0 });
  look();
  const at = `127.0.0.1:${(a.app.server.address() as AddressInfo).port}`;
  await used(a, id, at, (what) => assert.deepEqual(look(), nothing, what));
});

test("through another host that knows its holder a capsule is used by one request to it, without a statement", {
  skip,
}, async (t) => {
  await using cluster = await twoHosts(t);
  const { a, b, look } = cluster;
  const id = await created(a);
  await b.app.listen({ host: "127.0.0.1", port: 0 });
  look();
  assert.equal((await b.call("GET", `${path}/${id}`)).status, 200);
  assert.deepEqual(look(), { ...nothing, b: 1, links: 1 }, "it looks for the holder");
  const at = `127.0.0.1:${(b.app.server.address() as AddressInfo).port}`;
  await used(b, id, at, (what) => assert.deepEqual(look(), { ...nothing, links: 1 }, what));
});

test("a create, a pause and a resume on the holder are one statement each; that of the pause comes behind its answer", {
  skip,
}, async (t) => {
  await using cluster = await twoHosts(t);
  const { a, look } = cluster;
  const { status, json } = await a.call("POST", path);
  assert.equal(status, 201);
  assert.deepEqual(look(), { ...nothing, a: 1 });
  await a.service.settled();
  await a.copied();
  assert.deepEqual(look(), { ...nothing, a: 1 }, "the copy of its status");
  assert.equal((await a.call("POST", `${path}/${json.id}/pause`)).status, 200);
  await a.service.settled();
  assert.deepEqual(look(), nothing);
  await a.copied();
  assert.deepEqual(look(), { ...nothing, a: 1 });
  assert.equal((await a.call("POST", `${path}/${json.id}/resume`)).status, 200);
  await a.service.settled();
  assert.deepEqual(look(), { ...nothing, a: 1 });
});

test("an idle host that holds capsules sends one statement a second", { skip }, async (t) => {
  await using cluster = await twoHosts(t);
  const { a, b, look } = cluster;
  await created(a, { timeout_sec: 0 });
  for (const host of [a, b]) await host.second(); // the audit entry of the create is sent
  look();
  for (let passed = 1; passed <= 3; passed++) {
    for (const host of [a, b]) await host.second();
    assert.deepEqual(look(), { ...nothing, a: 1, b: 1 });
  }
});
