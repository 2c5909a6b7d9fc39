import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../../test/api.ts";

test("a link signs in once, with a key of its own that expires", async () => {
  const api = new Api();
  const link = await api.call("POST", "/v1/sign-in-links");
  assert.equal(link.status, 201);
  const { token } = link.json;

  const signedIn = await api.call("POST", "/v1/sign-in", { key: null, json: { token } });
  assert.equal(signedIn.status, 200);
  assert.equal(signedIn.headers["cache-control"], "no-store");
  const { key, key_id, team, expires_at } = signedIn.json;
  assert.equal(team, "red");
  const session = await api.call("GET", "/v1/session", { key });
  assert.deepEqual(session.json, { team: "red", key_id, key_name: "dashboard", expires_at });

  const again = await api.call("POST", "/v1/sign-in", { key: null, json: { token } });
  assert.deepEqual([again.status, again.json.error.code], [401, "unauthorized"]);
  assert.ok(!api.log.join("").includes(token));
});

test("a link ends with the key that made it", async () => {
  const api = new Api();
  const { json } = await api.call("POST", "/v1/keys", { json: { name: "lost laptop" } });
  const link = await api.call("POST", "/v1/sign-in-links", { key: json.key });
  await api.call("DELETE", `/v1/keys/${json.id}`);
  const { status } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: link.json.token } });
  assert.equal(status, 401);
});

test("unknown and malformed tokens are refused", async () => {
  const api = new Api();
  for (const token of ["", "signin_", `signin_${"0".repeat(48)}`]) {
    assert.equal((await api.call("POST", "/v1/sign-in", { key: null, json: { token } })).status, 401);
  }
  for (const json of [{}, { token: 1 }, { token: "x".repeat(1_001) }]) {
    assert.equal((await api.call("POST", "/v1/sign-in", { key: null, json })).status, 400);
  }
  assert.equal((await api.call("POST", "/v1/sign-in-links", { key: null })).status, 401);
});

test("without a key a body is bounded to 16 KiB", async () => {
  const api = new Api();
  const { status, json } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: "x".repeat(20_000) } });
  assert.deepEqual([status, json.error.code], [413, "too_large"]);
});
