/** Requests to a host that does not hold their capsule, with a real PostgreSQL in which it looks. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { get, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { WebSocket } from "ws";
import { keys } from "../api.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor, within } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster, releaseAfterMs } from "./fake-hosts.ts";
import { Link } from "./link.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts() {
  const database = await clusterDatabase(server, {});
  await addTeams(database);
  const linkB = await Link.to(server);
  const a = await hostOfCluster(database, "a");
  const b = await hostOfCluster(database, "b", { link: linkB });
  for (const host of [a, b]) await host.second(); // it learns the other one's port
  return {
    ...{ a, b, linkB, database },
    async [Symbol.asyncDispose]() {
      linkB.open();
      for (const each of [a, b, linkB, database]) await each[Symbol.asyncDispose]();
    },
  };
}

/** The answer once another host is reached, which has 1.5 s for a question and 3 s for a handshake. */
function untilReached(host: FakeHostOfCluster, method: "GET" | "POST", path: string) {
  return waitFor(`${method} ${path} reaches its host`, async () => {
    const answer = await host.call(method, path);
    return answer.status !== 503 && answer;
  });
}

test("every host answers for every capsule, by id and by name", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const [first, second] = [await created(a, { name: "one" }), await created(b)];
  for (const [host, key, id] of [
    [b, first, first],
    [b, "one", first],
    [a, second, second],
    [a, "one", first],
  ] as const) {
    const { status, json } = await host.call("GET", `/v1/capsules/${key}`);
    assert.deepEqual([status, json.id, json.host], [200, id, id === first ? "a" : "b"]);
  }
  const ran = await b.call("POST", "/v1/capsules/one/exec", { cmd: "echo", args: ["there"] });
  assert.deepEqual([ran.status, ran.json.stdout], [200, "there\n"]);
  assert.equal((await b.call("POST", "/v1/capsules/one/pause")).status, 200);
  assert.equal(a.service.store.get(first)?.status, "paused");
  assert.equal((await b.call("DELETE", "/v1/capsules/one")).status, 204);
  assert.equal((await b.call("GET", `/v1/capsules/${first}`)).status, 404);
});

test("an unknown capsule and another team's get the same bytes on both hosts, after the same statements", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const { json } = await a.call("POST", "/v1/capsules", {}, { "x-api-key": keys.blue });
  await a.copied();
  const requests = [
    ["GET", "", undefined],
    ["PATCH", "", { labels: { k: "v" } }],
    ["DELETE", "", undefined],
    ["POST", "/ping", undefined],
    ["POST", "/exec", { cmd: "echo" }],
    ["POST", "/pause", undefined],
  ] as const;
  for (const [method, suffix, body] of requests) {
    const answers = new Set<string>();
    for (const host of [a, b]) {
      for (const id of [json.id, `cl-${"z".repeat(25)}`]) {
        const { statements } = host.sql;
        const answer = await host.call(method, `/v1/capsules/${id}${suffix}`, body);
        const shown = JSON.stringify(answer.json).replaceAll(id, "{id}");
        answers.add(`${answer.status} ${shown} after ${host.sql.statements - statements}`);
      }
    }
    assert.equal(answers.size, 1, [method, suffix, ...answers].join("\n"));
    assert.match([...answers][0]!, /^404 .*after 1$/);
  }
});

test("a client that asks as a host does, whether a capsule is there, gets the answer to its request", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const own = await created(a);
  const foreign = await a.call("POST", "/v1/capsules", { name: "secret" }, { "x-api-key": keys.blue });
  assert.equal(foreign.status, 201);
  for (const asked of [
    ["team-blue", "secret"],
    [null, foreign.json.id],
    [null, own],
    ["team-blue", "absent"],
  ]) {
    const question = Buffer.from(JSON.stringify(asked)).toString("base64url");
    const { status, json } = await b.call("GET", `/v1/capsules/${own}`, undefined, { "x-capsule-question": question });
    assert.deepEqual([status, json?.id], [200, own], asked.join(" "));
  }
});

test("what can be no id and no name is 404, with a NUL as well", { skip }, async () => {
  await using cluster = await twoHosts();
  for (const key of ["a%00b", "cl-%00", `cl-${"z".repeat(24)}%00`, "A", "x".repeat(64)]) {
    const { status, json } = await cluster.b.call("GET", `/v1/capsules/${key}`);
    assert.deepEqual([status, json.error.code], [404, "not_found"], key);
  }
});

test("without the database a host finds capsules by its map, and by asking the other hosts", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, linkB } = cluster;
  const [known, unknown] = [await created(a), await created(a, { name: "web" })];
  assert.equal((await b.call("GET", `/v1/capsules/${known}`)).status, 200);
  linkB.cut();
  assert.equal((await b.call("GET", `/v1/capsules/${known}`)).status, 200);
  for (const key of ["web", unknown]) {
    const { json } = await untilReached(b, "GET", `/v1/capsules/${key}`);
    assert.equal(json.id, unknown);
  }
  const ran = await b.call("POST", `/v1/capsules/${unknown}/exec`, { cmd: "echo", args: ["there"] });
  assert.deepEqual([ran.status, ran.json.stdout], [200, "there\n"]);
  assert.equal((await b.call("POST", `/v1/capsules/${unknown}/pause`)).status, 200);
  assert.equal(a.service.store.get(unknown)?.status, "paused");
});

test("without the database a capsule that no host says to hold is 503, another team's too, until it is back", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, linkB } = cluster;
  const { json: foreign } = await a.call("POST", "/v1/capsules", {}, { "x-api-key": keys.blue });
  const late = await created(a);
  linkB.cut();
  const answers = new Set<string>();
  for (const key of [foreign.id, `cl-${"z".repeat(25)}`, "no-such-name"]) {
    const { status, json, headers } = await b.call("GET", `/v1/capsules/${key}`);
    answers.add(JSON.stringify([status, json, headers["retry-after"]]));
  }
  assert.equal(answers.size, 1, [...answers].join("\n"));
  assert.match([...answers][0]!, /^\[503,.*"unavailable".*"5"\]$/);
  await a.app.close(); // with its peer port
  assert.equal((await b.call("GET", `/v1/capsules/${late}`)).status, 503);
  linkB.open();
  const found = await waitFor("the database answers", async () => {
    const { status } = await b.call("GET", `/v1/capsules/${foreign.id}`);
    return status !== 503 && status;
  });
  assert.equal(found, 404);
});

test("a request waits for a host that is stopped and started anew", { skip }, async () => {
  await using database = await clusterDatabase(server, {});
  await addTeams(database);
  await using a = await hostOfCluster(database, "a");
  await using b = await hostOfCluster(database, "b");
  await b.second();
  const id = await created(a);
  await a.app.close(); // which says so to the database
  await a.kill();
  assert.equal(b.cluster.membership.isAbsent("a"), false);
  await b.second();
  assert.equal(b.cluster.membership.isAbsent("a"), true);
  const asked = b.call("POST", `/v1/capsules/${id}/exec`, { cmd: "echo", args: ["there"] });
  await using _again = await hostOfCluster(database, "a", { database: a.database, machine: a.machine });
  await b.second();
  const { status, json } = await asked;
  assert.deepEqual([status, json.stdout], [200, "there\n"]);
});

test("a host that only the database has not heard of is asked, and one that has ended is not", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  for (let seconds = 0; seconds < 13; seconds++) await b.second();
  assert.deepEqual(await b.cluster.locations.find("team-red", id), { at: "unavailable", host: "a" });
  assert.equal((await untilReached(b, "GET", `/v1/capsules/${id}`)).status, 200);
  assert.equal((await untilReached(b, "POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.kill();
  const { status, json } = await b.call("GET", `/v1/capsules/${id}`);
  assert.deepEqual([status, json.error.code, json.error.details], [503, "unavailable", { host: "a" }]);
});

test("numbers beyond a double, and bodies that are nested deeply, are refused at every host", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  const headers = { "content-type": "application/json", "x-api-key": keys.red };
  const nested = "[".repeat(39_000) + "]".repeat(39_000);
  for (const payload of [
    `{"sandbox_id":"${id}","name":1e400}`,
    `{"sandbox_id":"${id}","name":-1e400}`,
    `{"sandbox_id":"${id}","name":${nested}}`,
  ]) {
    for (const { app } of [a, b]) {
      const { statusCode, body } = await app.inject({ method: "POST", url: "/v1/snapshots", headers, payload });
      assert.deepEqual([statusCode, JSON.parse(body).error?.code], [400, "invalid_request"]);
    }
  }
});

test("a URL in an answer has the address that the client has asked", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const path = `/v1/capsules/${await created(a)}/files/url`;
  for (const host of [a, b]) {
    const { json } = await host.call("POST", path, { path: "/root/file" }, { host: "api.example.org:8443" });
    assert.match(json.url, /^http:\/\/api\.example\.org:8443\/v1\//);
  }
});

test("a ticket of one host opens a socket at the other one", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  const path = `/v1/capsules/${id}/pty`;
  const { json } = await a.call("POST", "/v1/ws-tickets", { path });
  await b.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = b.app.server.address() as AddressInfo;
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}?ticket=${json.ticket}`);
  await within("the socket opens", once(socket, "open"));
  socket.terminate();
});

test("a request that reaches a capsule while its release is asked for waits, and is answered by its row", {
  skip,
}, async (t) => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const machine = new FakeHost();
  await using c = await hostOfCluster(database, "c", { machine, uploads: new FakeUploads(machine) });
  const [id, other] = [await created(c), await created(c)];
  assert.equal((await c.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await c.service.settled();
  for (const host of [a, b]) await host.second(); // it learns the port of c
  const { locations } = c.cluster;
  const leaving = locations.leaving.bind(locations);
  const isAsked = Promise.withResolvers<void>();
  t.mock.method(locations, "leaving", (...of: Parameters<typeof leaving>) => {
    isAsked.resolve();
    return leaving(...of);
  });
  let shown: ReturnType<typeof b.call> | undefined;
  await database.sql.transact(async (blocking) => {
    await blocking.query("SELECT 1 FROM teams WHERE name = 'red' FOR UPDATE"); // the release waits
    c.clock.advance(releaseAfterMs);
    await waitFor("the release", () => c.service.store.leaving.has(id));
    shown = b.call("GET", `/v1/capsules/${id}`);
    await within("the request at its holder", isAsked.promise);
    // A request that does not wait is over before these.
    for (let asked = 0; asked < 5; asked++) assert.equal((await b.call("GET", `/v1/capsules/${other}`)).status, 200);
  });
  const { status, json } = await within("the answer", shown!);
  assert.deepEqual([status, json.status, json.host], [200, "paused", null], JSON.stringify(json));
});

test("a port's URL is found by the id alone", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  await b.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = b.app.server.address() as AddressInfo;
  const ask = async (headers: Record<string, string>) => {
    const sent = get({ port, agent: false, headers: { ...headers, host: `80-${id}.localhost` } });
    const [answer] = (await within("the answer", once(sent, "response"))) as [IncomingMessage];
    answer.resume();
    return answer.statusCode;
  };
  assert.equal(await ask({}), 401);
  assert.equal(await ask({ "x-api-key": keys.red }), 502, "nothing listens");
});
