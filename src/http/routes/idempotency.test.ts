import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys, type Reply } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";

interface Asked {
  json?: object;
  url?: string;
  user?: string;
}

function create(api: Api, key: string, { json = {}, url = "/v1/capsules", user = keys.red }: Asked = {}) {
  return api.call("POST", url, { json, key: user, headers: { "idempotency-key": key } });
}

async function count(api: Api): Promise<number> {
  return (await api.call("GET", "/v1/capsules")).json.length;
}

function outcome({ status, headers, text }: Reply) {
  return { status, text, replayed: headers["idempotent-replayed"] };
}

describe("Idempotency-Key", () => {
  test("gives the first answer again, byte for byte, whatever became of the capsule", async () => {
    const api = new Api();
    const first = await create(api, "k1", { json: { name: "web", labels: { a: "1", b: "2" } } });
    assert.deepEqual([first.status, first.headers["idempotent-replayed"]], [201, undefined]);
    await api.call("GET", "/v1/capsules/web?wait=running");
    await api.call("PATCH", "/v1/capsules/web", { json: { name: "other", labels: { c: "3" } } });
    const reordered = await create(api, "k1", { json: { labels: { b: "2", a: "1" }, name: "web" } });
    assert.deepEqual(outcome(reordered), { status: 201, text: first.text, replayed: "true" });
    assert.equal((await api.call("DELETE", "/v1/capsules/other")).status, 204);
    assert.equal((await create(api, "k1", { json: { name: "web", labels: { a: "1", b: "2" } } })).text, first.text);
    assert.equal(await count(api), 0);
  });

  test("belongs to a team, and to a body", async () => {
    const api = new Api();
    const first = await create(api, "k1");
    const other = await create(api, "k1", { json: { vcpus: 2 } });
    assert.deepEqual([other.status, other.json.error.code], [409, "conflict"]);
    const theirs = await create(api, "k1", { json: { vcpus: 2 }, user: keys.blue });
    assert.equal(theirs.status, 201);
    assert.notEqual(theirs.json.id, first.json.id);
    assert.equal(await count(api), 1);
  });

  test("holds over a restart, and for an answer that a crash kept from the client", async () => {
    const api = new Api();
    const { host, database, clock } = api.service;
    host.isHanging = true;
    const lost = create(api, "k1", { url: "/v1/capsules?wait=running" });
    await waitFor("the create waits", () => api.waits === 1);
    const next = new Api({}, {}, { database, clock });
    const repeat = await create(next, "k1");
    assert.deepEqual([repeat.status, repeat.json.status], [201, "starting"]);
    assert.equal(repeat.json.id, (await next.call("GET", "/v1/capsules")).json[0].id);
    host.stopHanging();
    const waited = await lost;
    assert.equal(waited.json.status, "running");
    const replayed = await create(new Api({}, {}, { database, clock }), "k1");
    assert.deepEqual(outcome(replayed), { status: 201, text: waited.text, replayed: "true" });
  });

  test("a repeat waits while the first request is under way", async () => {
    const api = new Api();
    const { host } = api.service;
    host.isHanging = true;
    const first = create(api, "k1", { url: "/v1/capsules?wait=running" });
    await waitFor("the create waits", () => api.waits === 1);
    const repeat = create(api, "k1");
    assert.equal((await create(api, "k1", { json: { vcpus: 2 } })).status, 409, "another body is refused at once");
    host.stopHanging();
    const answer = await first;
    assert.deepEqual(outcome(await repeat), { status: 201, text: answer.text, replayed: "true" });
    assert.equal(await count(api), 1);
  });

  test("keeps no refusal: of the body, of the service, or after the capsule was made", async () => {
    const api = new Api();
    assert.equal((await create(api, "k1", { json: { vcpus: 0 } })).status, 400);
    assert.equal((await create(api, "k1", { json: { template: "none" } })).status, 404);
    api.service.host.isHanging = true;
    const first = create(api, "k1", { url: "/v1/capsules?wait=running" });
    await waitFor("the create waits", () => api.waits === 1);
    const [{ id }] = (await api.call("GET", "/v1/capsules")).json;
    assert.equal((await api.call("DELETE", `/v1/capsules/${id}`)).status, 204);
    assert.equal((await first).status, 404);
    api.service.host.stopHanging();
    const again = await create(api, "k1");
    assert.deepEqual(outcome(again).replayed, undefined);
    assert.notEqual(again.json.id, id);
  });

  test("of a capture: the template is there once, though its capsule is gone", async () => {
    const api = new Api();
    const id = await api.capsule();
    const capture = (name: string) =>
      api.call("POST", "/v1/snapshots", { json: { sandbox_id: id, name }, headers: { "idempotency-key": "k1" } });
    const first = await capture("tools");
    assert.equal(first.status, 201);
    assert.deepEqual(outcome(await capture("tools")), { status: 201, text: first.text, replayed: "true" });
    assert.equal((await capture("others")).status, 409);
    assert.equal((await create(api, "k1")).status, 201, "another path");
  });

  test("is refused when it is no key, and ignored elsewhere", async () => {
    const api = new Api();
    for (const key of ["", "a b", "a".repeat(256), "ä"]) {
      const reply = await create(api, key);
      assert.deepEqual([reply.status, reply.json.error.details], [400, { field: "idempotency-key" }], key);
    }
    const deep = `${'{"a":'.repeat(100_000)}1${"}".repeat(100_000)}`;
    const headers = { "idempotency-key": "k1", "content-type": "application/json" };
    const reply = await api.call("POST", "/v1/capsules", { body: deep, headers });
    assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"]);
    const id = await api.capsule();
    for (const _ of [1, 2]) {
      const ping = await api.call("POST", `/v1/capsules/${id}/ping`, { headers: { "idempotency-key": "a b" } });
      assert.deepEqual([ping.status, ping.headers["idempotent-replayed"]], [204, undefined]);
    }
    assert.equal((await create(api, "a".repeat(255))).status, 201);
  });

  test("is not accepted with a body that takes long to compare, and is checked behind the body's capsule", async () => {
    const api = new Api();
    const fields = Object.fromEntries(Array.from({ length: 19_500 }, (_, i) => [i, 0]));
    for (const many of [Array(20_001).fill(0), [fields, ...Array(501).fill(0)]]) {
      const reply = await create(api, "k1", { json: { many } });
      assert.deepEqual([reply.status, reply.json.error.details], [400, { field: "idempotency-key" }]);
    }
    const headers = { "idempotency-key": "a b" };
    const capture = await api.call("POST", "/v1/snapshots", { json: { sandbox_id: "cl-none" }, headers });
    assert.equal(capture.status, 404);
  });

  test("changes nothing of what the query and the body's unknown fields are told", async () => {
    const api = new Api();
    for (const _ of [1, 2]) {
      const reply = await create(api, "k1", { json: { colour: "red" } });
      assert.deepEqual([reply.status, reply.headers["x-ignored-fields"]], [201, "colour"]);
      assert.equal((await create(api, "k1", { json: { colour: "red" }, url: "/v1/capsules?more=1" })).status, 400);
    }
  });

  test("a repeat leaves no audit entry: it has changed nothing", async () => {
    const api = new Api();
    for (const _ of [1, 2, 3]) await create(api, "k1");
    const { entries } = (await api.call("GET", "/v1/audit?limit=10")).json;
    assert.deepEqual(
      entries.map((entry: { action: string }) => entry.action),
      ["capsule.create"],
    );
  });
});
