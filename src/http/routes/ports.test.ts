/** The list of a capsule's ports, with a fake guest. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../../test/api.ts";
import { CapsuleError } from "../../wire/errors.ts";

test("the ports are told as the guest tells them, with their URLs", async () => {
  const api = new Api();
  const id = await api.capsule();
  api.agent(id).ports = async () => [
    { port: 80, address: "0.0.0.0", pid: 7, cmd: "nginx" },
    { port: 5_432, address: "::1", pid: undefined, cmd: "" },
  ];
  await api.call("PUT", `/v1/capsules/${id}/network`, { json: { public_ports: [80, 81] } });
  const { status, json } = await api.call("GET", `/v1/capsules/${id}/ports`);
  assert.equal(status, 200);
  assert.deepEqual(json, [
    { port: 80, address: "0.0.0.0", pid: 7, cmd: "nginx", public: true, url: `http://80-${id}.localhost:8080` },
    { port: 5_432, address: "::1", pid: null, cmd: "", public: false, url: `http://5432-${id}.localhost:8080` },
  ]);
});

test("a paused capsule is refused and stays paused, with auto_resume too", async () => {
  const api = new Api();
  for (const auto_resume of [false, true]) {
    const id = await api.capsule();
    await api.call("PATCH", `/v1/capsules/${id}`, { json: { auto_resume } });
    await api.become(id, "paused");
    const { status, json } = await api.call("GET", `/v1/capsules/${id}/ports`);
    assert.deepEqual([status, json.error.code], [409, "invalid_state"]);
    assert.equal((await api.call("GET", `/v1/capsules/${id}`)).json.status, "paused");
  }
});

test("a saved agent without the verb is a conflict", async () => {
  const api = new Api();
  const id = await api.capsule();
  api.agent(id).ports = () => Promise.reject(new CapsuleError("conflict", "the agent lacks the verb"));
  const { status, json } = await api.call("GET", `/v1/capsules/${id}/ports`);
  assert.deepEqual([status, json.error.code], [409, "conflict"]);
});
