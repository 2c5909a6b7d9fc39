import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../../test/api.ts";
import { SignInLinks } from "./sign-in.ts";

const red = { teamId: "team-red", keyId: "key-red", keyName: "first", team: "red" };

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

test("a link dies with the key that made it", async () => {
  const api = new Api();
  const { json } = await api.call("POST", "/v1/keys", { json: { name: "lost laptop" } });
  const link = await api.call("POST", "/v1/sign-in-links", { key: json.key });
  await api.call("DELETE", `/v1/keys/${json.id}`);
  const { status } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: link.json.token } });
  assert.equal(status, 401);
});

test("unknown and malformed tokens are nobody's", async () => {
  const api = new Api();
  for (const token of ["", "signin_", `signin_${"0".repeat(48)}`]) {
    assert.equal((await api.call("POST", "/v1/sign-in", { key: null, json: { token } })).status, 401);
  }
  for (const json of [{}, { token: 1 }, { token: "x".repeat(1_001) }]) {
    assert.equal((await api.call("POST", "/v1/sign-in", { key: null, json })).status, 400);
  }
  assert.equal((await api.call("POST", "/v1/sign-in-links", { key: null })).status, 401);
});

test("a link is good for five minutes", () => {
  let now = 1_000;
  const links = new SignInLinks(() => now);
  const early = links.issue(red);
  const late = links.issue(red);
  assert.equal(early.expiresAt, 301_000);
  now = 300_999;
  assert.equal(links.redeem(early.token), red);
  now = 301_000;
  assert.equal(links.redeem(late.token), undefined);
});

test("a team that hoards links keeps no other from having one; time makes room", () => {
  let now = 0;
  const links = new SignInLinks(() => now);
  for (let made = 0; made < 100; made++) links.issue(red);
  assert.throws(() => links.issue(red), { code: "quota_exceeded" });
  links.issue({ ...red, teamId: "team-blue" });
  now = 5 * 60_000;
  links.issue(red);
});

test("a stranger's body is refused before it fills anything", async () => {
  const api = new Api();
  const { status, json } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: "x".repeat(20_000) } });
  assert.deepEqual([status, json.error.code], [413, "too_large"]);
});
