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

test("the audit log names the key that made a link, for the link and for the sign-in", async () => {
  const api = new Api();
  const { json: maker } = await api.call("POST", "/v1/keys", { json: { name: "laptop" } });
  const { json: link } = await api.call("POST", "/v1/sign-in-links", { key: maker.key });
  const { json: session } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: link.token } });
  const { json: audit } = await api.call("GET", "/v1/audit?limit=2");
  const found = audit.entries.map((each: Record<string, unknown>) => [
    each.action,
    each.key_id,
    each.key_name,
    each.subject,
    each.status,
  ]);
  assert.deepEqual(found, [
    ["sign-in", maker.id, "laptop", session.key_id, 200],
    ["sign-in-link.create", maker.id, "laptop", null, 201],
  ]);
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
