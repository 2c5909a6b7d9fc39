/** A client beyond its limit gets 429 with Retry-After, and other clients are served. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, type Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../test/api.ts";
import { steadyClock } from "../../test/fakes/steady-clock.ts";
import { waitFor } from "../../test/wait-for.ts";

const stallMs = 200;
const red = { teamId: "team-red", keyId: "key-red" };

/** The replies to `count` equal requests, one after the other. */
async function statuses(api: Api, count: number, call: Parameters<Api["call"]>[2] = {}): Promise<number[]> {
  const found: number[] = [];
  for (let i = 0; i < count; i++) found.push((await api.call("GET", "/v1/capsules", call)).status);
  return found;
}

/** No bucket is refilled meanwhile. */
function stopClock(t: TestContext): void {
  t.mock.method(performance, "now", () => 1_000);
}

test("a flood with one key is 429 with Retry-After; other keys, and other teams, are served", async (t) => {
  stopClock(t);
  const api = new Api({ requests_per_sec: 1 });
  const answers = await statuses(api, 50);
  assert.deepEqual([...new Set(answers)].sort(), [200, 429]);
  assert.ok(answers.filter((status) => status === 200).length >= 5);
  const { key } = api.service.teams.issueKey(red, "another");
  assert.deepEqual(await statuses(api, 1, { key }), [200]);
  assert.deepEqual(await statuses(api, 1, { key: keys.blue }), [200]);
  const refused = await api.call("GET", "/v1/capsules");
  assert.equal(refused.status, 429);
  assert.equal(refused.json.error.code, "quota_exceeded");
  assert.match(String(refused.headers["retry-after"]), /^[1-9]\d*$/);
});

test("all keys of a team together have a rate limit", async (t) => {
  stopClock(t);
  const api = new Api({ requests_per_sec: 1 });
  const answers: number[] = [];
  for (let i = 0; i < 40; i++) {
    const { key } = api.service.teams.issueKey(red, String(i));
    answers.push(...(await statuses(api, 4, { key })));
  }
  assert.ok(answers.includes(429));
  assert.deepEqual(await statuses(api, 1, { key: keys.blue }), [200]);
});

test("making keys and sign-in links has a rate limit of the team; revoking keys and other teams have none of it", async (t) => {
  stopClock(t);
  const api = new Api();
  const { json: limits } = await api.call("GET", "/v1/limits");
  const make = (key: string) => api.call("POST", "/v1/keys", { key, json: { name: "made" } });
  const revoke = async (id: string) => assert.equal((await api.call("DELETE", `/v1/keys/${id}`)).status, 204);
  const { json: first } = await make(keys.red);
  assert.equal((await api.call("POST", "/v1/sign-in-links")).status, 201);
  for (let made = 2; made < limits.credentials_burst_max; made++) await revoke((await make(keys.red)).json.id);
  for (const refused of [await make(keys.red), await make(first.key), await api.call("POST", "/v1/sign-in-links")]) {
    assert.equal(refused.status, 429);
    assert.equal(refused.headers["retry-after"], String(60 / limits.credentials_per_min));
  }
  await revoke(first.id);
  assert.equal((await make(keys.blue)).status, 201);
});

test("guessing keys is 401, then 429; a valid key from the same address is served", async (t) => {
  stopClock(t);
  const api = new Api({ refused_keys_per_sec: 1 });
  const answers = await statuses(api, 100, { key: "capk_guess" });
  assert.deepEqual([...new Set(answers)].sort(), [401, 429]);
  assert.ok(answers.filter((status) => status === 401).length >= 20);
  assert.deepEqual(await statuses(api, 1), [200]);
  assert.equal((await api.call("GET", "/healthz", { key: null })).status, 200);
});

test("guessing sign-in links is 401, then 429 with Retry-After; a true one from the same address signs in", async (t) => {
  stopClock(t);
  const api = new Api({ refused_keys_per_sec: 1 });
  const signIn = (token: string) => api.call("POST", "/v1/sign-in", { key: null, json: { token } });
  const answers: number[] = [];
  for (let i = 0; i < 50; i++) answers.push((await signIn(`signin_${i}`)).status);
  assert.deepEqual([...new Set(answers)].sort(), [401, 429]);
  assert.match(String((await signIn("signin_")).headers["retry-after"]), /^[1-9]\d*$/);
  const { token } = (await api.call("POST", "/v1/sign-in-links")).json;
  assert.equal((await signIn(token)).status, 200);
});

test("a flood of open pages is 429 with Retry-After; keys from its address and other addresses are served", async (t) => {
  stopClock(t);
  const api = new Api({ open_requests_per_sec: 1 });
  const from = (remoteAddress: string, url: string) => api.app.inject({ url, remoteAddress });
  const pages = ["/healthz", "/openapi.json", "/", "/docs", "/icon.svg", "/nothing"];
  for (const [i, url] of pages.entries()) {
    const answers: number[] = [];
    while (answers.length < 100 && answers.at(-1) !== 429) answers.push((await from(`10.0.0.${i}`, url)).statusCode);
    assert.ok(answers.length > 10, `${url}: ${answers}`);
    assert.equal(answers.at(-1), 429, url);
  }
  assert.match(String((await from("10.0.0.0", "/healthz")).headers["retry-after"]), /^[1-9]\d*$/);
  assert.equal((await from("10.0.1.1", "/healthz")).statusCode, 200);
  const headers = { "x-api-key": keys.red };
  const served = await api.app.inject({ url: "/v1/capsules", remoteAddress: "10.0.0.0", headers });
  assert.equal(served.statusCode, 200);
});

test("guesses from one IPv6 /64 network share a limit, and those from one /48; another network is served", async (t) => {
  stopClock(t);
  const api = new Api({ refused_keys_per_sec: 1 });
  const from = async (remoteAddress: string) => {
    const { statusCode } = await api.app.inject({ url: "/v1/capsules", remoteAddress });
    return statusCode;
  };
  const answers: number[] = [];
  for (let i = 1; i <= 50; i++)
    answers.push(await from(i % 2 === 0 ? `2001:db8::${i.toString(16)}` : `2001:db8::${i}:1:2:3`));
  assert.deepEqual([...new Set(answers)].sort(), [401, 429]);
  assert.equal(await from("2001:db8:0:1::1"), 401);
  assert.equal(await from("2001:db8:1::1"), 401);
  assert.equal(await from("::1"), 401);
  const ofSite: number[] = [];
  for (let i = 0; i < 200; i++) ofSite.push(await from(`2001:db8:5:${(i << 8).toString(16)}::1`));
  assert.equal(ofSite.filter((status) => status === 401).length, 80, "a /48 has four times the limit of a /64");
});

test("requests in progress have a limit per team; the end of a request or its client's disconnect makes room", async () => {
  const api = new Api({ requests_max: 3 });
  const { port } = await listen(api);
  try {
    const id = await api.capsule("starting");
    const wait = (key: string, signal?: AbortSignal) =>
      fetch(`http://127.0.0.1:${port}/v1/capsules/${id}?wait=running&timeout=60`, {
        headers: { "x-api-key": key },
        ...(signal === undefined ? {} : { signal }),
      });
    const controller = new AbortController();
    const waits = [wait(keys.red), wait(keys.red), wait(keys.red, controller.signal)];
    await waitFor("three requests wait", () => api.waits === 3);
    const refused = await wait(keys.red);
    assert.equal(refused.status, 429);
    assert.equal(refused.headers.get("retry-after"), "1");
    assert.deepEqual(await statuses(api, 1, { key: keys.blue }), [200]);
    controller.abort();
    await assert.rejects(waits[2]!);
    await waitFor("two requests wait", () => api.waits === 2);
    assert.deepEqual(await statuses(api, 5), [200, 200, 200, 200, 200]);
    await api.become(id, "running");
    for (const answer of waits.slice(0, 2)) assert.equal((await answer).status, 200);
  } finally {
    await api.app.close();
  }
});

test("WebSockets have a limit per capsule, and do not count as requests in progress", async () => {
  const api = new Api({ requests_max: 1, sockets_per_capsule_max: 3 });
  const { port } = await listen(api);
  const open: WebSocket[] = [];
  try {
    const [id, other] = [await api.capsule(), await api.capsule()];
    const upgrade = (capsule: string) =>
      new Promise<number>((resolve, reject) => {
        const url = `ws://127.0.0.1:${port}/v1/capsules/${capsule}/pty`;
        const socket = new WebSocket(url, { headers: { "x-api-key": keys.red } });
        open.push(socket);
        socket.once("open", () => resolve(101));
        socket.once("unexpected-response", (_request, response) => resolve(response.statusCode ?? 0));
        socket.once("error", reject);
      });
    const answers = [await upgrade(id), await upgrade(id), await upgrade(id), await upgrade(id)];
    assert.deepEqual(answers, [101, 101, 101, 429]);
    assert.equal(await upgrade(other), 101);
    open[0]?.close();
    await waitFor("there is room again", async () => (await upgrade(id)) === 101);
    assert.deepEqual(await statuses(api, 2), [200, 200]);
  } finally {
    for (const socket of open) socket.terminate();
    await api.app.close();
  }
});

test("a client that does not read its response is disconnected; one that waits for its response is not", async (t) => {
  const clock = steadyClock(t);
  const api = new Api({}, { stallMs });
  const { port } = await listen(api);
  try {
    const id = await api.capsule("starting");
    const reader = await api.capsule();
    api.agent(reader).files.set("/big", Buffer.alloc(64 << 20));
    const waiting = fetch(`http://127.0.0.1:${port}/v1/capsules/${id}?wait=running&timeout=60`, {
      headers: { "x-api-key": keys.red },
    });
    await waitFor("the request waits", () => api.waits === 1);
    const accepted = once(api.app.server, "connection") as Promise<[Socket]>;
    const socket = connect(port, "127.0.0.1");
    socket.pause();
    const disconnected = accepted.then(([served]) => once(served, "close"));
    const body = '{"path":"/big"}';
    socket.write(
      `POST /v1/capsules/${reader}/files/read HTTP/1.1\r\nHost: x\r\nX-API-Key: ${keys.red}\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    let isDisconnected = false;
    void disconnected.then(() => {
      isDisconnected = true;
    });
    await waitFor("the reader is disconnected", async () => {
      await clock.pass(stallMs / 4);
      return isDisconnected;
    });
    await api.become(id, "running");
    assert.equal((await waiting).status, 200);
    socket.destroy();
  } finally {
    await api.app.close();
  }
});

async function listen(api: Api): Promise<AddressInfo> {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  return api.app.server.address() as AddressInfo;
}
