import assert from "node:assert/strict";
import { test } from "node:test";
import { Capsule } from "./capsule.ts";
import { Client } from "./client.ts";
import { hasCode } from "./errors.ts";

const id = "cl-0123456789abcdefghijklmno";
const url = "http://127.0.0.1:2";

test("connect and list end after timeoutMs", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const silent: typeof fetch = (_, init) =>
    new Promise((_, reject) => init?.signal?.addEventListener("abort", () => reject(init.signal?.reason)));
  const client = new Client({ url, fetch: silent, retries: 0 });
  const options = { timeoutMs: 50 };
  for (const answer of [client.connect(id, options), client.list(options)]) {
    const late = answer.then(
      () => "answered",
      (error) => error,
    );
    t.mock.timers.tick(50);
    const outcome = await Promise.race([late, new Promise((resolve) => setImmediate(resolve, "pending"))]);
    assert.ok(hasCode(outcome, "timed_out"), String(outcome));
  }
});

test("a handle asks nothing of the service until it is used, and has no info until an answer brings it", async () => {
  const asked: string[] = [];
  const answer = { id, status: "paused", template: "minimal", memory_mb: 512 };
  const recording: typeof fetch = async (input, init) => {
    asked.push(`${init?.method} ${String(input).slice(url.length)}`);
    return Response.json(answer);
  };
  const capsule = new Client({ url, fetch: recording }).capsule(id);
  assert.deepEqual([capsule.id, JSON.stringify(capsule), asked], [id, JSON.stringify({ id }), []]);
  assert.throws(() => capsule.status, /refresh\(\)/);
  assert.throws(() => capsule.info, /refresh\(\)/);
  await capsule.pause();
  assert.deepEqual(asked, [`POST /v1/capsules/${id}/pause`]);
  assert.deepEqual([capsule.status, capsule.info.memoryMb], ["paused", 512]);
});

test("without a key nothing is sent, and the error says what to set; a page or an own fetch may add the key", async () => {
  const names = ["CAPSULE_URL", "CAPSULE_API_KEY"] as const;
  const before = names.map((name) => process.env[name]);
  for (const name of names) delete process.env[name];
  try {
    for (const call of [Capsule.create(), new Client({ url }).list(), new Client({ url }).keys.list()]) {
      const error = await call.then(
        () => assert.fail("answered"),
        (error) => error,
      );
      assert.ok(hasCode(error, "unauthorized"), String(error));
      assert.match(error.message, /set CAPSULE_URL and CAPSULE_API_KEY/);
    }
    const client = new Client({ url, fetch: async () => Response.json([]) });
    assert.deepEqual(await client.list(), []);
    for (const keyless of [new Client({ url, retries: 0 }).health(), Client.signIn("token", { url, retries: 0 })])
      await assert.rejects(keyless, (error) => hasCode(error, "unreachable"));
  } finally {
    for (const [at, name] of names.entries()) if (before[at] !== undefined) process.env[name] = before[at];
  }
});

test("policies go as the API has them, in a create and in a change", async () => {
  const asked: unknown[] = [];
  const recording: typeof fetch = async (_input, init) => {
    asked.push(JSON.parse(String(init?.body)));
    return Response.json({ id, status: "running", on_timeout: "destroy", expires_at: null, auto_resume: true });
  };
  const client = new Client({ url, apiKey: "k", fetch: recording });
  const deadlines = {
    timeoutSec: 1,
    onTimeout: "destroy",
    lifetimeSec: 2,
    onExpiry: "pause",
    retentionSec: 3,
  } as const;
  const made = await client.create({ ...deadlines, autoResume: true, wait: false });
  await made.update({ ...deadlines, autoResume: false });
  const sent = { timeout_sec: 1, on_timeout: "destroy", lifetime_sec: 2, on_expiry: "pause", retention_sec: 3 };
  assert.deepEqual(asked, [
    { ...sent, auto_resume: true },
    { ...sent, auto_resume: false },
  ]);
  assert.deepEqual([made.info.onTimeout, made.info.expiresAt, made.info.autoResume], ["destroy", null, true]);
});

test("a network and links to ports go and come as the API has them", async () => {
  const asked: [string, string, unknown][] = [];
  const answers = {
    POST: {
      id,
      status: "running",
      network: { host_header: null },
      port_url: "p",
      url: "u",
      token: "t",
      expires_at: "e",
    },
    GET: { public_ports: [1], counters: { bytes_out: 0 } },
    PUT: { public_ports: [80], inject: [{ host: "a", headers: { X_Key: null } }] },
  };
  const recording: typeof fetch = async (input, init) => {
    const method = init?.method ?? "";
    asked.push([method, String(input).slice(url.length), init?.body && JSON.parse(String(init.body))]);
    return method === "DELETE" ? new Response(null, { status: 204 }) : Response.json(answers[method as "GET"]);
  };
  const client = new Client({ url, apiKey: "k", fetch: recording });
  const inject = [{ host: "a", headers: { X_Key: "1", "x-key-2": null } }];
  const network = {
    egress: "allowlist",
    allow: ["a"],
    deny: ["1.1.1.1"],
    publicPorts: [80],
    hostHeader: "b",
    inject,
  } as const;
  const sent = { egress: "allowlist", allow: ["a"], deny: ["1.1.1.1"], public_ports: [80], host_header: "b", inject };
  const made = await client.create({ network, wait: false });
  assert.deepEqual([made.info.network.hostHeader, made.info.portUrl], [null, "p"]);
  const state = await made.network();
  assert.deepEqual([state.publicPorts, state.counters.bytesOut], [[1], 0]);
  assert.deepEqual((await made.setNetwork(network)).inject, [{ host: "a", headers: { X_Key: null } }]);
  await made.setNetwork({});
  const { url: link, token, expiresAt } = await made.url(8_000, { expiresSec: 60 });
  assert.deepEqual([link, token, expiresAt], ["u", "t", "e"]);
  await made.url(8_000);
  await made.revokeUrls();
  const path = `/v1/capsules/${id}`;
  assert.deepEqual(asked, [
    ["POST", "/v1/capsules", { network: sent }],
    ["GET", `${path}/network`, undefined],
    ["PUT", `${path}/network`, sent],
    ["PUT", `${path}/network`, {}],
    ["POST", `${path}/ports/8000/url`, { expires_sec: 60 }],
    ["POST", `${path}/ports/8000/url`, {}],
    ["DELETE", `${path}/ports/tokens`, undefined],
  ]);
});

test("names, labels and conditions go as the API has them, and labels keep their keys", async () => {
  const asked: [string, string, unknown][] = [];
  const labels = { my_key: "a", otherKey: "b" };
  const recording: typeof fetch = async (input, init) => {
    asked.push([init?.method ?? "", String(input).slice(url.length), init?.body && JSON.parse(String(init.body))]);
    const answer = { id, name: "web", labels, status: "running", timeout_sec: 5 };
    return Response.json(init?.method === "GET" ? [answer] : answer);
  };
  const client = new Client({ url, apiKey: "k", fetch: recording });
  const made = await client.create({ name: "web", labels, wait: false });
  assert.deepEqual([made.info.name, made.info.labels, made.toJSON().labels], ["web", labels, labels]);
  await made.update({ name: null, labels: { my_key: null }, timeoutSec: 5 });
  await client.list({ status: ["running", "paused"], labels, template: "t", name: "web" });
  await client.list({ status: "paused" });
  assert.deepEqual(asked, [
    ["POST", "/v1/capsules", { name: "web", labels }],
    ["PATCH", `/v1/capsules/${id}`, { name: null, labels: { my_key: null }, timeout_sec: 5 }],
    ["GET", "/v1/capsules?status=running%2Cpaused&label=my_key%3Da&label=otherKey%3Db&template=t&name=web", undefined],
    ["GET", "/v1/capsules?status=paused", undefined],
  ]);
});
