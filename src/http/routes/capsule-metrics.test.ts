import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api } from "../../../test/api.ts";

describe("metrics", () => {
  test("of a capsule are points with null for what is not known, and wake nothing", async () => {
    const api = new Api();
    const { json: made } = await api.call("POST", "/v1/capsules?wait=running", { json: { name: "web" } });
    const agent = api.service.host.guests.get(made.id)!.agent;
    agent.usageNow = () => Promise.reject(new Error("no answer"));
    api.service.clock.advance(10_000);
    await api.service.metrics.pass();
    const { status, json } = await api.call("GET", "/v1/capsules/web/metrics?step=10&since=0");
    const unknown = { memory_used_mb: null, memory_total_mb: null, disk_used_mb: null, disk_total_mb: null };
    const point = { at: api.service.clock.now(), cpu_pct: 0, vcpus: 1, ...unknown };
    assert.deepEqual([status, json], [200, [point]]);
    await api.call("POST", `/v1/capsules/${made.id}/pause`);
    const { json: kept } = await api.call("GET", `/v1/capsules/${made.id}/metrics`);
    assert.deepEqual(kept, json);
    const { json: view } = await api.call("GET", `/v1/capsules/${made.id}`);
    assert.deepEqual([view.status, view.last_active_at], ["paused", null]);
  });

  test("of the team count creates and refused requests", async () => {
    const api = new Api({}, {}, { quotas: { capsules: 1 } });
    await api.call("POST", "/v1/capsules?wait=running", { json: {} });
    assert.equal((await api.call("POST", "/v1/capsules", { json: {} })).status, 429);
    api.service.clock.advance(10_000);
    await api.service.metrics.pass();
    const { json } = await api.call("GET", "/v1/metrics");
    const times = { create_ms_p50: 0, create_ms_p95: 0 };
    assert.deepEqual(json, [{ at: api.service.clock.now(), running: 1, paused: 0, creates: 1, ...times, refused: 1 }]);
    assert.deepEqual((await api.call("GET", "/v1/metrics?step=300")).json, []);
  });

  test("of an unknown capsule are 404, and another step or a bad time 400", async () => {
    const api = new Api();
    const { json: made } = await api.call("POST", "/v1/capsules", { json: {} });
    assert.equal((await api.call("GET", "/v1/capsules/none/metrics")).status, 404);
    for (const path of [`/v1/capsules/${made.id}/metrics`, "/v1/metrics"])
      for (const query of ["step=60", "step=", "step=10&step=300", "since=-1", "since=1.5", "since=now", "to=1"])
        assert.equal((await api.call("GET", `${path}?${query}`)).status, 400, query);
  });
});
