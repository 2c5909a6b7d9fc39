/** Keys of which one host has heard and another has not: made, unknown, vouched for and revoked; and sign-in links. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { get, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { WebSocket } from "ws";
import type { Limits } from "../../src/wire/limits.ts";
import { waitFor, within } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { Link } from "./link.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts(limits: Partial<Limits> = {}) {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const linkA = await Link.to(server);
  const a = await hostOfCluster(database, "a", { link: linkA });
  const b = await hostOfCluster(database, "b", { limits });
  for (const host of [a, b]) await host.second(); // it learns the other one's port
  return {
    ...{ a, b, linkA },
    async [Symbol.asyncDispose]() {
      linkA.open();
      for (const each of [a, b, linkA, database]) await each[Symbol.asyncDispose]();
    },
  };
}

async function madeBy(host: FakeHostOfCluster): Promise<{ id: string; key: string }> {
  const { status, json } = await host.call("POST", "/v1/keys", { name: "ci" });
  assert.equal(status, 201);
  return json;
}

/** Status and statements of a request with that key. */
async function session(host: FakeHostOfCluster, key: string): Promise<{ status: number; statements: number }> {
  const { statements } = host.sql;
  const { status } = await host.call("GET", "/v1/session", undefined, { "x-api-key": key });
  return { status, statements: host.sql.statements - statements };
}

async function opened(host: FakeHostOfCluster, path: string, headers: Record<string, string>): Promise<WebSocket> {
  if (!host.app.server.listening) await host.app.listen({ host: "127.0.0.1", port: 0 });
  const socket = new WebSocket(`ws://127.0.0.1:${(host.app.server.address() as AddressInfo).port}${path}`, { headers });
  await within("the socket opens", once(socket, "open"));
  return socket;
}

async function answersPing(socket: WebSocket): Promise<void> {
  const answered = once(socket, "pong");
  socket.ping();
  await within("the socket answers", answered);
}

const unknown = `capk_${"e".repeat(48)}`;

test("a key is accepted by the other host at once, after one statement", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const { key } = await madeBy(a);
  assert.deepEqual(await session(b, key), { status: 200, statements: 1 });
  assert.deepEqual(await session(b, key), { status: 200, statements: 0 });
});

test("an unknown key costs one statement in ten seconds, and what is no key none", { skip }, async () => {
  await using cluster = await twoHosts();
  const { b } = cluster;
  const { statements } = b.sql;
  const both = await Promise.all([session(b, unknown), session(b, unknown)]);
  assert.deepEqual(
    both.map(({ status }) => status),
    [401, 401],
  );
  assert.equal(b.sql.statements, statements + 1, "two at once share a query");
  assert.deepEqual(await session(b, unknown), { status: 401, statements: 0 });
  assert.deepEqual(await session(b, "x".repeat(53)), { status: 401, statements: 0 });
  b.clock.advance(10_000);
  await b.cluster.settled();
  assert.deepEqual(await session(b, unknown), { status: 401, statements: 1 });
});

test("an address makes as many lookups of unknown keys as it may be refused, and a key that is found costs none", {
  skip,
}, async () => {
  await using cluster = await twoHosts({ refused_keys_per_sec: 1 });
  const { a, b } = cluster;
  for (let found = 0; found < 25; found++) {
    const { key } = await madeBy(a);
    assert.deepEqual(await session(b, key), { status: 200, statements: 1 });
  }
  let last = { status: 0, statements: 0 };
  for (let asked = 0; asked < 200 && last.status !== 429; asked++) {
    last = await session(b, `capk_${String(asked).padStart(48, "0")}`);
    assert.equal(last.statements, last.status === 401 ? 1 : 0);
  }
  assert.equal(last.status, 429);
});

test("of many unknown keys at once each is refused by its own statement, or told to come again", { skip }, async () => {
  await using cluster = await twoHosts();
  const { b } = cluster;
  const { statements } = b.sql;
  const asked = Array.from({ length: 60 }, (_, index) =>
    b.app.inject({ url: "/v1/session", headers: { "x-api-key": `capk_${String(index).padStart(48, "0")}` } }),
  );
  const statuses = (await Promise.all(asked)).map(({ statusCode }) => statusCode);
  assert.equal(b.sql.statements - statements, statuses.filter((status) => status === 401).length);
  assert.ok(
    statuses.every((status) => status === 401 || status === 503),
    statuses.join(),
  );
});

test("a ticket of a new key, and a port's URL with one, are good at the other host", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(b);
  const { key } = await madeBy(a);
  const path = `/v1/capsules/${id}/pty`;
  const { json } = await a.call("POST", "/v1/ws-tickets", { path }, { "x-api-key": key });
  (await opened(b, `${path}?ticket=${json.ticket}`, {})).terminate();
  const other = (await madeBy(a)).key;
  const { port } = b.app.server.address() as AddressInfo;
  const sent = get({ port, agent: false, headers: { host: `80-${id}.localhost`, "x-api-key": other } });
  const [answer] = (await within("the answer", once(sent, "response"))) as [IncomingMessage];
  assert.equal(answer.resume().statusCode, 502, "nothing listens");
});

test("the holder brings its copy up to date before it judges a key that is passed on", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  const { key, id: keyId } = await madeBy(b);
  assert.equal(a.services.teams.key(keyId), undefined);
  const socket = await opened(b, `/v1/capsules/${id}/pty`, { "x-api-key": key });
  assert.notEqual(a.services.teams.key(keyId), undefined);
  await a.service.teams.checkRevoked();
  await answersPing(socket);
  socket.terminate();
});

test("without the database the holder takes the other host's word for a key, until the database is back", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, linkA } = cluster;
  const id = await created(a);
  linkA.cut();
  const { key, id: keyId } = await madeBy(b);
  const socket = await opened(b, `/v1/capsules/${id}/pty`, { "x-api-key": key });
  await a.service.teams.checkRevoked();
  await answersPing(socket);
  assert.equal((await session(a, key)).status, 503, "the key itself");
  linkA.open();
  await waitFor("the key is accepted", async () => {
    await a.second();
    return (await session(a, key)).status === 200;
  });
  await answersPing(socket);
  const closed = once(socket, "close");
  await b.call("DELETE", `/v1/keys/${keyId}`);
  await waitFor("the key ends", async () => {
    await a.second();
    return (await session(a, key)).status === 401;
  });
  assert.equal((await within("the socket closes", closed))[0], 4401);
});

test("a revoked key closes what is open at the other host with the next heartbeat", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(b);
  const { key, id: keyId } = await madeBy(a);
  const socket = await opened(b, `/v1/capsules/${id}/pty`, { "x-api-key": key });
  const closed = once(socket, "close");
  await a.call("DELETE", `/v1/keys/${keyId}`);
  await b.second();
  assert.equal((await within("the socket closes", closed))[0], 4401);
  assert.equal((await session(b, key)).status, 401);
});

test("without the database an unknown key is 503, and one that is known to have ended 401", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, linkA } = cluster;
  const { key, id } = await madeBy(a);
  await a.call("DELETE", `/v1/keys/${id}`);
  linkA.cut();
  assert.deepEqual([(await session(a, unknown)).status, (await session(a, key)).status], [503, 401]);
});

test("a sign-in link of one host is good once, at any host", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  for (const { clock } of [a, b]) clock.step(Date.now() - clock.now()); // the database removes keys that have expired by its own
  const { key: maker, id: makerId } = await madeBy(a);
  const linkOf = async (host: FakeHostOfCluster, key: string) => {
    const { status, json } = await host.call("POST", "/v1/sign-in-links", undefined, { "x-api-key": key });
    assert.equal(status, 201);
    return json.token as string;
  };
  const signIn = (host: FakeHostOfCluster, token: string) => host.call("POST", "/v1/sign-in", { token });
  for (const [first, second] of [
    [b, a],
    [a, b],
    [b, b],
  ] as const) {
    const token = await linkOf(a, maker);
    const { status, json } = await signIn(first, token);
    assert.equal(status, 200);
    for (const host of [a, b]) assert.equal((await session(host, json.key)).status, 200);
    assert.equal((await signIn(second, token)).status, 401);
    const altered = token.replace(/(?<=\.)./, (first) => (first === "A" ? "B" : "A"));
    assert.equal((await signIn(second, altered)).status, 401);
  }
  const token = await linkOf(a, maker);
  const both = await Promise.all([a, b, a, b].map((host) => signIn(host, token)));
  assert.deepEqual(both.map(({ status }) => status).sort(), [200, 401, 401, 401]);
  const left = await linkOf(b, maker);
  await a.call("DELETE", `/v1/keys/${makerId}`);
  for (const host of [a, b]) assert.equal((await signIn(host, left)).status, 401);
});
