/** 429 answers of a started server, whose Retry-After is long enough. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Client as SdkClient } from "../../src/sdk/sdk.ts";
import { Client, type Reply } from "../client.ts";
import { Server } from "../server.ts";

const timeout = 300_000;
const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };
/** More than the burst of each limit below. */
const requestsMax = 50;

function retryAfterSec({ status, headers, json }: Reply): number {
  assert.deepEqual([status, json.error.code], [429, "quota_exceeded"]);
  assert.match(headers["retry-after"] ?? "none", /^[1-9]\d*$/);
  return Number(headers["retry-after"]);
}

/** Repeats a request until a 429. */
async function untilRefused(ask: () => Promise<Reply>): Promise<Reply> {
  for (let count = 0; count < requestsMax; count++) {
    const reply = await ask();
    if (reply.status === 429) return reply;
  }
  return assert.fail(`${requestsMax} requests were let through`);
}

test("a key that asks too fast is refused, and served again after Retry-After", { timeout }, async () => {
  await using server = await Server.start({ env: { ...env, CAPSULE_REQUESTS_PER_SEC: "1" } });
  const client = await Client.connect(server.url, server.apiKey);
  const other = client.as(await server.createKey("other"));
  const ask = () => client.call("GET", "/v1/limits");
  const waitSec = retryAfterSec(await untilRefused(ask));
  await other.expect(200, "GET", "/v1/limits"); // another team has its own limit
  await delay(waitSec * 1_000);
  assert.equal((await ask()).status, 200);
  await untilRefused(ask);
  const sdk = new SdkClient({ url: server.url, apiKey: server.apiKey });
  assert.equal((await sdk.limits()).capsulesMax, 1_000, "the SDK waits as it is told");
  client.close();
});

test("keys that are guessed at are refused, and valid ones from the same address are not", { timeout }, async () => {
  await using server = await Server.start({ env: { ...env, CAPSULE_REFUSED_KEYS_PER_SEC: "1" } });
  const client = await Client.connect(server.url, server.apiKey);
  const guess = () => client.as("guessed").call("GET", "/v1/limits");
  assert.equal((await guess()).status, 401);
  const waitSec = retryAfterSec(await untilRefused(guess));
  await client.expect(200, "GET", "/v1/limits");
  await delay(waitSec * 1_000);
  assert.equal((await guess()).status, 401);
  client.close();
});

test("a team at its quota is refused, and served again when there is room", { timeout }, async () => {
  await using server = await Server.start({ env: { ...env, CAPSULE_CAPSULES_MAX: "1" } });
  const client = await Client.connect(server.url, server.apiKey);
  const other = client.as(await server.createKey("other"));
  const capsule = await client.capsule();
  const refused = await client.call("POST", "/v1/capsules");
  retryAfterSec(refused);
  assert.deepEqual(refused.json.error.details, { quota: "capsules", used: 1, limit: 1 });
  await using _ofOther = await other.capsule();
  await capsule.destroy();
  await using again = await client.capsule();
  assert.equal(await again.sh("echo served"), "served");
  client.close();
});
