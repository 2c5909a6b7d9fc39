import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";

describe("snapshot templates", () => {
  test("minimal is always listed; type filters", async () => {
    const api = new Api();
    const { json } = await api.call("GET", "/v1/snapshots");
    assert.equal(json[0].name, "minimal");
    assert.equal(json[0].vcpus, null);
    assert.equal((await api.call("GET", "/v1/snapshots?type=base")).json.length, 1);
    assert.equal((await api.call("GET", "/v1/snapshots?type=snapshot")).text, "[]");
    assert.equal((await api.call("GET", "/v1/snapshots?type=other")).status, 400);
  });

  test("capture answers 201 and destroys the capsule", async () => {
    const api = new Api();
    const id = await api.capsule();
    const reply = await api.call("POST", "/v1/snapshots", { json: { sandbox_id: id, name: "tools" } });
    assert.equal(reply.status, 201);
    assert.equal(reply.json.type, "snapshot");
    assert.equal(reply.json.name, "tools");
    assert.equal((await api.call("GET", `/v1/capsules/${id}`)).status, 404);
    assert.equal((await api.call("GET", "/v1/snapshots?type=snapshot")).json.length, 1);
    assert.equal((await api.call("GET", "/v1/snapshots?type=snapshot", { key: keys.blue })).text, "[]");
  });

  test("a taken name is 409 unless overwrite is true; a base template's is reserved", async () => {
    const api = new Api();
    const capture = async (name: string, query = "") =>
      api.call("POST", `/v1/snapshots${query}`, { json: { sandbox_id: await api.capsule(), name } });
    assert.equal((await capture("tools")).status, 201);
    for (const query of ["", "?overwrite=false", "?overwrite=1"]) {
      const taken = await capture("tools", query);
      assert.deepEqual([taken.status, taken.json.error.code], [409, "template_name_taken"]);
    }
    assert.equal((await capture("tools", "?overwrite=true")).status, 201);
    const reserved = await capture("minimal");
    assert.deepEqual([reserved.status, reserved.json.error.code], [409, "name_reserved"]);
  });

  for (const name of ["-bad name", "x".repeat(4_097), 1, ["a"]]) {
    test(`the name ${JSON.stringify(name).slice(0, 20)} is reported only for a running capsule of the team`, async () => {
      const api = new Api();
      const capture = async (id: string) => {
        const { status, json } = await api.call("POST", "/v1/snapshots?overwrite=1&overwrite=2", {
          json: { sandbox_id: id, name },
        });
        return [status, json.error.code];
      };
      assert.deepEqual(await capture("cl-unknown"), [404, "not_found"]);
      assert.deepEqual(await capture(await api.capsule("running", keys.blue)), [404, "not_found"]);
      assert.deepEqual(await capture(await api.capsule("paused")), [409, "invalid_state"]);
      assert.deepEqual(await capture(await api.capsule("running")), [400, "invalid_request"]);
    });
  }

  // That names of other letters are refused is the templates' business, behind the checks above.
  for (const name of ["x".repeat(4_097), 1, {}, ["a"]]) {
    test(`refuses the name ${JSON.stringify(name).slice(0, 20)}`, async () => {
      const api = new Api();
      const json = { sandbox_id: await api.capsule(), name };
      assert.equal((await api.call("POST", "/v1/snapshots", { json })).status, 400);
      assert.equal((await api.call("GET", `/v1/capsules/${json.sandbox_id}`)).json.status, "running");
    });
  }

  test("delete is 204 once, then 404; a base template is no snapshot template", async () => {
    const api = new Api();
    await api.call("POST", "/v1/snapshots", { json: { sandbox_id: await api.capsule(), name: "tools" } });
    assert.equal((await api.call("DELETE", "/v1/snapshots/tools", { key: keys.blue })).status, 404);
    const gone = await api.call("DELETE", "/v1/snapshots/tools");
    assert.deepEqual([gone.status, gone.text], [204, ""]);
    for (const name of ["tools", "minimal", "x".repeat(10_000), "..%2f..", "%00"]) {
      assert.equal((await api.call("DELETE", `/v1/snapshots/${name}`)).status, 404, name);
    }
  });
});
