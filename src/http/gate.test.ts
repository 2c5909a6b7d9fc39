import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../test/api.ts";

const api = new Api();
const unknownId = `cl-${"z".repeat(25)}`;

/** Every route on a capsule, with a body that is refused only behind the gate. */
const malformed = { body: '{"cmd":', headers: { "content-type": "application/json" } };
const capsuleRoutes = [
  ["GET", "", {}],
  ["DELETE", "", {}],
  ["POST", "/pause", malformed],
  ["POST", "/resume", malformed],
  ["POST", "/ping", malformed],
  ["POST", "/exec", malformed],
] as const;

describe("order of checks", () => {
  for (const [method, suffix, body] of capsuleRoutes) {
    const name = `${method} /v1/capsules/{id}${suffix}`;

    test(`${name}: the key comes first`, async () => {
      for (const key of [null, "", "capk_nobody", `${keys.red}x`]) {
        const reply = await api.call(method, `/v1/capsules/${unknownId}${suffix}`, { ...body, key });
        assert.equal(reply.status, 401);
        assert.equal(reply.json.error.code, "unauthorized");
        assert.equal(reply.headers["www-authenticate"], "Bearer");
      }
    });

    test(`${name}: unknown, malformed and foreign ids get the same reply, before the body is read`, async () => {
      const foreign = await api.capsule("running", keys.blue);
      const ids = [unknownId, foreign, "x", "cl-", "..%2f..%2fetc%2fpasswd", "%00", "a".repeat(10_000)];
      const bodies = new Set<string>();
      for (const id of ids) {
        const reply = await api.call(method, `/v1/capsules/${id}${suffix}`, { ...body });
        assert.equal(reply.status, 404, id);
        assert.equal(reply.json.error.code, "not_found");
        bodies.add(reply.text.replace(JSON.stringify(decodeURIComponent(id)).slice(1, -1), "{id}"));
      }
      assert.equal(bodies.size, 1, [...bodies].join("\n"));
    });
  }

  for (const [method, suffix, body] of capsuleRoutes.filter(([, suffix]) => suffix !== "")) {
    test(`${method} /v1/capsules/{id}${suffix}: the state comes before the body`, async () => {
      const wrong = suffix === "/resume" ? "running" : "paused";
      const reply = await api.call(method, `/v1/capsules/${await api.capsule(wrong)}${suffix}`, { ...body });
      assert.equal(reply.status, 409);
      assert.equal(reply.json.error.code, "invalid_state");
    });
  }

  test("the body comes last", async () => {
    const reply = await api.call("POST", `/v1/capsules/${await api.capsule()}/exec`, malformed);
    assert.equal(reply.status, 400);
    assert.equal(reply.json.error.code, "invalid_request");
  });

  test("a snapshot's capsule is in its body: 401, 404, 409 before its name", async () => {
    const at = (key: string | null, json: unknown) => api.call("POST", "/v1/snapshots", { key, json });
    assert.equal((await at(null, {})).status, 401);
    assert.equal((await at(keys.red, {})).status, 400);
    assert.equal((await at(keys.red, { sandbox_id: unknownId, name: "-" })).status, 404);
    assert.equal((await at(keys.red, { sandbox_id: unknownId })).status, 404);
    assert.equal((await at(keys.red, { sandbox_id: await api.capsule("running", keys.blue) })).status, 404);
    assert.equal((await at(keys.red, { sandbox_id: await api.capsule("paused") })).status, 409);
  });
});

describe("routes and methods", () => {
  test("an unknown route is 404 in JSON; under /v1 it needs a key", async () => {
    for (const path of ["/v1", "/v1/", "/v1/nothing", "/v1/capsules/a/b", "/v1/capsules/a/b/c?d=e"]) {
      assert.equal((await api.call("GET", path, { key: null })).status, 401, path);
      const reply = await api.call("GET", path);
      assert.equal(reply.status, 404, path);
      assert.equal(reply.json.error.code, "not_found");
    }
    for (const path of ["/nothing", "/v2", "/v1x", "/favicon.ico", "/healthz/"]) {
      assert.equal((await api.call("GET", path, { key: null })).status, 404, path);
    }
  });

  test("an encoded path is guarded like the plain path", async () => {
    for (const path of ["/%761/capsules", "/v1/%63apsules", "//v1/capsules", "/V1/capsules"]) {
      const { status } = await api.call("GET", path, { key: null });
      assert.ok(status === 401 || status === 404, `${path}: ${status}`);
    }
  });

  test("a wrong method is 405 with Allow, after the key, before the body", async () => {
    assert.equal((await api.call("PUT", "/v1/capsules", { key: null })).status, 401);
    const reply = await api.call("PUT", "/v1/capsules", malformed);
    assert.equal(reply.status, 405);
    assert.equal(reply.json.error.code, "method_not_allowed");
    assert.equal(reply.headers.allow, "GET, HEAD, POST, OPTIONS");
    assert.equal(
      (await api.call("PUT", `/v1/capsules/${unknownId}`)).headers.allow,
      "DELETE, GET, HEAD, PATCH, OPTIONS",
    );
    assert.equal((await api.call("DELETE", "/healthz", { key: null })).status, 405);
  });

  test("OPTIONS lists the methods; HEAD is GET without the body", async () => {
    const options = await api.call("OPTIONS", "/v1/capsules");
    assert.equal(options.status, 204);
    assert.equal(options.headers.allow, "GET, HEAD, POST, OPTIONS");
    const head = await api.call("HEAD", "/v1/capsules");
    assert.equal(head.status, 200);
    assert.equal(head.text, "");
    assert.equal((await api.call("HEAD", `/v1/capsules/${unknownId}`)).status, 404);
  });

  test("malformed percent-encoding is 400, without a key 401", async () => {
    const reply = await api.call("GET", "/v1/capsules/%zz");
    assert.equal(reply.status, 400);
    assert.equal(reply.json.error.code, "invalid_request");
    assert.equal((await api.call("GET", "/v1/capsules/%zz", { key: null })).status, 401);
  });

  test("every response has a request id of the server's", async () => {
    const ids = new Set<unknown>();
    const paths = ["/healthz", "/v1/capsules", "/v1/nothing", "/v1/capsules/%zz", `/v1/capsules/${unknownId}`];
    for (const path of paths) {
      ids.add((await api.call("GET", path, { headers: { "x-request-id": "mine" } })).headers["x-request-id"]);
    }
    assert.equal(ids.size, paths.length);
    assert.ok(!ids.has(undefined) && !ids.has("mine"));
  });
});
