import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { origins } from "../../setting.ts";

const [app, admin] = ["https://app.example.org", "http://localhost:3000"];
const others = ["https://evil.example", "https://app.example.org.evil.example", "http://app.example.org", "null", ""];

function fresh() {
  return new Api({}, { corsOrigins: [app, admin] });
}

describe("pages of permitted origins", () => {
  test("are answered with the permission, refusals and answers to odd URLs too", async () => {
    const api = fresh();
    const id = await api.capsule();
    const calls = [
      ["GET", `/v1/capsules/${id}`, keys.red, 200],
      ["GET", "/v1/capsules", null, 401],
      ["GET", "/v1/capsules/cl-none", keys.red, 404],
      ["GET", "/v1/none", keys.red, 404],
      ["PUT", "/v1/capsules", keys.red, 405],
      ["POST", `/v1/capsules/${id}/exec`, keys.red, 400],
      ["GET", "/v1/capsules/%zz", keys.red, 400],
      ["GET", "/healthz", null, 200],
    ] as const;
    for (const [method, url, key, status] of calls) {
      const reply = await api.call(method, url, { key, headers: { origin: app } });
      assert.equal(reply.status, status, `${method} ${url}`);
      assert.equal(reply.headers["access-control-allow-origin"], app, `${method} ${url}`);
      assert.equal(reply.headers.vary, "Origin", `${method} ${url}`);
      const readable = String(reply.headers["access-control-expose-headers"]);
      for (const name of ["X-Next-Cursor", "Idempotent-Replayed", "X-Request-Id"]) assert.ok(readable.includes(name));
    }
  });

  test("ask before a request, without a key, and get every method and header of the API", async () => {
    const api = fresh();
    for (const url of ["/v1/capsules", "/v1/capsules/cl-none/exec", "/healthz", "/v1/none"]) {
      const headers = { origin: admin, "access-control-request-method": "POST" };
      const reply = await api.app.inject({ method: "OPTIONS", url, headers });
      assert.deepEqual([reply.statusCode, reply.body], [204, ""], url);
      assert.equal(reply.headers["access-control-allow-origin"], admin);
      for (const method of ["GET", "POST", "PUT", "PATCH", "DELETE"])
        assert.match(String(reply.headers["access-control-allow-methods"]), new RegExp(`\\b${method}\\b`));
      for (const name of ["X-API-Key", "Authorization", "Content-Type", "Idempotency-Key", "Range"])
        assert.ok(String(reply.headers["access-control-allow-headers"]).split(", ").includes(name), name);
    }
  });

  test("ask at the rate of requests without a key", async (t) => {
    t.mock.method(performance, "now", () => 1_000); // the bucket is not refilled meanwhile
    const api = new Api({ open_requests_per_sec: 1 }, { corsOrigins: [app] });
    const headers = { origin: app, "access-control-request-method": "GET" };
    const statuses = [];
    for (let i = 0; i < 12; i++) {
      statuses.push((await api.app.inject({ method: "OPTIONS", url: "/v1/capsules", headers })).statusCode);
    }
    assert.deepEqual([...new Set(statuses)], [204, 429]);
  });
});

test("pages of other origins get no permission", async () => {
  const api = fresh();
  for (const origin of others) {
    const reply = await api.call("GET", "/v1/capsules", { headers: { origin } });
    assert.deepEqual([reply.status, reply.headers["access-control-allow-origin"]], [200, undefined], origin);
    assert.equal(reply.headers.vary, "Origin");
    const headers = { origin, "access-control-request-method": "POST" };
    const asked = await api.app.inject({ method: "OPTIONS", url: "/v1/capsules", headers });
    assert.deepEqual([asked.statusCode, asked.headers["access-control-allow-origin"]], [401, undefined], origin);
  }
});

test("without a setting no origin gets a permission", async () => {
  const api = new Api();
  const reply = await api.call("GET", "/v1/capsules", { headers: { origin: app } });
  assert.deepEqual([reply.headers["access-control-allow-origin"], reply.headers.vary], [undefined, undefined]);
});

test("the setting takes origins as browsers send them, and nothing else", () => {
  assert.deepEqual(origins(""), []);
  assert.deepEqual(origins(`${app}, ${admin}`), [app, admin]);
  const bad = [
    "*",
    "null",
    `${app}/`,
    `${app}/x`,
    "app.example.org",
    "https://App.example.org",
    `${app}:443`,
    `${app},`,
  ];
  for (const text of bad) assert.throws(() => origins(text), /is none/, text);
});
