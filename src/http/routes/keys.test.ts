import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../../test/api.ts";
import { keys } from "../../../test/fakes/services.ts";

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
