import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api } from "../../../test/api.ts";

const none = { on_timeout: "pause", lifetime_sec: 0, on_expiry: "destroy", retention_sec: 0, auto_resume: false };

/** The policies in `view`, and the end of its lifetime. */
function policiesOf(view: Record<string, unknown>): Record<string, unknown> {
  const { on_timeout, lifetime_sec, expires_at, on_expiry, retention_sec, auto_resume } = view;
  return { on_timeout, lifetime_sec, expires_at, on_expiry, retention_sec, auto_resume };
}

describe("the policies of a capsule", () => {
  test("have defaults, which null means too", async () => {
    const api = new Api();
    for (const json of [
      {},
      { on_timeout: null, lifetime_sec: null, on_expiry: null, retention_sec: null, auto_resume: null },
    ]) {
      const { status, json: made } = await api.call("POST", "/v1/capsules", { json });
      assert.deepEqual([status, policiesOf(made)], [201, { ...none, expires_at: null }]);
    }
  });

  test("take the times that the service sets where a create names none, and 0 is none all the same", async () => {
    const limits = { timeout_default_sec: 600, lifetime_default_sec: 7_200, retention_default_sec: 86_400 };
    const api = new Api(limits);
    const times = async (json: object) => {
      const { json: made } = await api.call("POST", "/v1/capsules", { json });
      return [made.timeout_sec, made.lifetime_sec, made.retention_sec];
    };
    assert.deepEqual(await times({}), [600, 7_200, 86_400]);
    assert.deepEqual(await times({ timeout_sec: null, lifetime_sec: null, retention_sec: null }), [600, 7_200, 86_400]);
    assert.deepEqual(await times({ timeout_sec: 0, lifetime_sec: 0, retention_sec: 0 }), [0, 0, 0]);
    assert.deepEqual(await times({ lifetime_sec: 5 }), [600, 5, 86_400]);
    const { json: told } = await api.call("GET", "/v1/limits");
    assert.deepEqual({ ...told, ...limits }, told);
  });

  test("are those of the create, and expires_at is there while the capsule runs", async () => {
    const api = new Api();
    const other = { on_expiry: "pause", retention_sec: 86_400, auto_resume: true };
    const json = { on_timeout: "destroy", lifetime_sec: 90, ...other };
    const { json: made } = await api.call("POST", "/v1/capsules", { json });
    assert.deepEqual(policiesOf(made), { ...json, expires_at: null });
    const { json: running } = await api.call("GET", `/v1/capsules/${made.id}?wait=running`);
    assert.equal(Date.parse(running.expires_at) - Date.parse(running.started_at), 90_000);
    assert.deepEqual((await api.call("GET", "/v1/capsules")).json, [running]);
    const { json: paused } = await api.call("POST", `/v1/capsules/${made.id}/pause`);
    assert.deepEqual(policiesOf(paused), { ...json, expires_at: null });
  });

  test("PATCH changes them all or none, in every status, and last_updated stays", async () => {
    const api = new Api();
    const { json: made } = await api.call("POST", "/v1/capsules?wait=running", { json: {} });
    const path = `/v1/capsules/${made.id}`;
    const refused = await api.call("PATCH", path, { json: { lifetime_sec: 60, on_expiry: "stop" } });
    assert.deepEqual([refused.status, refused.json.error.details], [400, { field: "on_expiry" }]);
    assert.deepEqual((await api.call("GET", path)).json, made);
    const other = { on_expiry: "pause", retention_sec: 5, auto_resume: true };
    const change = { on_timeout: "destroy", lifetime_sec: 60, ...other };
    const { json: changed } = await api.call("PATCH", path, { json: change });
    assert.deepEqual(changed, { ...made, ...change, expires_at: changed.expires_at });
    assert.equal(Date.parse(changed.expires_at), api.service.clock.now() + 60_000);
    const { json: nulls } = await api.call("PATCH", path, { json: { lifetime_sec: null, on_expiry: null } });
    assert.deepEqual(nulls, changed, "null is as left out");
    const { json: endless } = await api.call("PATCH", path, { json: { lifetime_sec: 0 } });
    assert.equal(endless.expires_at, null);
    api.service.audit.flush();
    const { json: log } = await api.call("GET", `/v1/audit?capsule=${made.id}`);
    const subjects = log.entries.map(({ action, subject }: { action: string; subject: string }) => [action, subject]);
    assert.deepEqual(subjects.slice(0, 3), [
      ["capsule.update", "lifetime_sec"],
      ["capsule.update", ""],
      ["capsule.update", "on_timeout, lifetime_sec, on_expiry, retention_sec, auto_resume"],
    ]);
  });

  for (const [field, values] of [
    ["lifetime_sec", [-1, 1.5, "1", 31_536_001, true]],
    ["retention_sec", [-1, 1.5, "1", 31_536_001, true]],
    ["on_timeout", ["", "stop", "PAUSE", 1]],
    ["on_expiry", ["", "stop", "PAUSE", 1]],
    ["auto_resume", [0, 1, "true", "", {}]],
    ["expires_at", []],
  ] as const) {
    test(`${field} refuses ${JSON.stringify(values)}`, async () => {
      const api = new Api();
      for (const value of values) {
        for (const [method, url] of [
          ["POST", "/v1/capsules"],
          ["PATCH", "/v1/capsules/x"],
        ] as const) {
          if (method === "PATCH") await api.call("POST", "/v1/capsules", { json: { name: "x" } });
          const reply = await api.call(method, url, { json: { [field]: value } });
          assert.deepEqual([reply.status, reply.json.error.details], [400, { field }], `${method} ${value}`);
        }
      }
      const { headers } = await api.call("POST", "/v1/capsules", { json: { expires_at: "2030-01-01T00:00:00.000Z" } });
      assert.equal(headers["x-ignored-fields"], "expires_at");
    });
  }

  test("the operator's limits bound them, and are shown", async () => {
    const api = new Api({ lifetime_max_sec: 60, retention_max_sec: 600 });
    const { json: limits } = await api.call("GET", "/v1/limits");
    assert.deepEqual([limits.lifetime_max_sec, limits.retention_max_sec], [60, 600]);
    const most = { lifetime_sec: 60, retention_sec: 600 };
    assert.equal((await api.call("POST", "/v1/capsules", { json: most })).status, 201);
    for (const [field, value] of Object.entries(most)) {
      const reply = await api.call("POST", "/v1/capsules", { json: { [field]: value + 1 } });
      assert.deepEqual([reply.status, reply.json.error.details], [400, { field }]);
    }
  });

  test("a template carries none of them", async () => {
    const api = new Api();
    const json = {
      name: "x",
      on_timeout: "destroy",
      lifetime_sec: 90,
      on_expiry: "pause",
      retention_sec: 5,
      auto_resume: true,
    };
    await api.call("POST", "/v1/capsules?wait=running", { json });
    const captured = await api.call("POST", "/v1/snapshots", { json: { sandbox_id: "x", name: "tools" } });
    assert.equal(captured.status, 201);
    const { json: made } = await api.call("POST", "/v1/capsules?wait=running", { json: { template: "tools" } });
    assert.deepEqual(policiesOf(made), { ...none, expires_at: null });
  });
});
