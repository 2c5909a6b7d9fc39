import assert from "node:assert/strict";
import { test } from "node:test";
import { Api, keys } from "../../../test/api.ts";

test("a key is shown once, listed without its text, valid for its team, and revoked at once", async () => {
  const api = new Api();
  const made = await api.call("POST", "/v1/keys", { json: { name: "laptop" } });
  assert.equal(made.status, 201);
  const { key, id } = made.json;

  const list = await api.call("GET", "/v1/keys");
  assert.ok(!list.text.includes(`"${key}"`));
  const [first, laptop] = list.json.keys;
  assert.deepEqual([first.current, first.name, laptop.current, laptop.name], [true, "first", false, "laptop"]);
  assert.equal(laptop.expires_at, null);

  const own = await api.call("GET", "/v1/session", { key });
  assert.deepEqual(own.json, { team: "red", key_id: id, key_name: "laptop", expires_at: null });
  assert.equal((await api.call("DELETE", `/v1/keys/${id}`, { key })).status, 204);
  assert.equal((await api.call("GET", "/v1/session", { key })).status, 401);
  assert.equal((await api.call("DELETE", `/v1/keys/${id}`)).status, 404);
});

test("keys name their makers; revoking one revokes all made with it, and the audit log has an entry for each", async () => {
  const api = new Api();
  const make = async (name: string, key: string = keys.red) =>
    (await api.call("POST", "/v1/keys", { key, json: { name } })).json;
  const second = await make("second");
  const third = await make("third", second.key);
  assert.deepEqual([second.made_by, third.made_by], ["key-red", second.id]);
  const { json: link } = await api.call("POST", "/v1/sign-in-links", { key: third.key });
  const { json: session } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: link.token } });
  const inSession = await make("made in the dashboard", session.key);
  assert.equal(inSession.made_by, third.id);
  const { json: list } = await api.call("GET", "/v1/keys");
  assert.deepEqual(
    list.keys.map((each: { made_by: string | null }) => each.made_by),
    [null, "key-red", second.id, third.id, third.id],
  );

  assert.equal((await api.call("DELETE", `/v1/keys/${second.id}`)).status, 204);
  for (const { key } of [second, third, session, inSession]) {
    assert.equal((await api.call("GET", "/v1/session", { key })).status, 401);
  }
  const { json: audit } = await api.call("GET", "/v1/audit?limit=4");
  const revoked = audit.entries.map((each: Record<string, unknown>) => [each.action, each.key_id, each.status]);
  assert.deepEqual(revoked, Array(4).fill(["key.revoke", "key-red", 204]));
  const subjects = audit.entries.map(({ subject }: { subject: string }) => subject);
  assert.deepEqual(subjects.toSorted(), [second.id, third.id, session.key_id, inSession.id].toSorted());
});

test("another team's key is not found, with the same message as an unknown one", async () => {
  const api = new Api();
  const { json } = await api.call("POST", "/v1/keys", { key: keys.blue, json: { name: "theirs" } });
  const foreign = await api.call("DELETE", `/v1/keys/${json.id}`);
  const unknown = await api.call("DELETE", "/v1/keys/key-000000000000");
  assert.equal(foreign.status, 404);
  assert.equal(foreign.text.replace(json.id, "key-000000000000"), unknown.text);
  assert.equal((await api.call("GET", "/v1/session", { key: json.key })).status, 200);
});

for (const body of [{}, { name: "" }, { name: 1 }, { name: "x".repeat(101) }, { name: "line\nbreak" }]) {
  test(`a key named ${JSON.stringify(body).slice(0, 40)} is refused`, async () => {
    const { status, json } = await new Api().call("POST", "/v1/keys", { json: body });
    assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
  });
}
