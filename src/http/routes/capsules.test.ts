import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { CapsuleError, statusOf } from "../../wire/errors.ts";

const noNetwork = { egress: "none", allow: [], deny: [], public_ports: [], host_header: null, inject: [] };
const iso = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

describe("POST /v1/capsules", () => {
  test("every field is optional: no body, empty bodies and {} mean the same", async () => {
    const api = new Api();
    const json = { "content-type": "application/json" };
    const form = { "content-type": "application/x-www-form-urlencoded" };
    const calls = [{}, { json: {} }, { body: "", headers: json }, { body: "", headers: form }, { body: "{}" }];
    for (const call of calls) {
      const { status, json: capsule } = await api.call("POST", "/v1/capsules", call);
      assert.equal(status, 201);
      assert.match(capsule.id, /^cl-[0-9a-z]{25}$/);
      assert.deepEqual(
        { ...capsule, id: "", port_url: "", created_at: "", last_updated: "" },
        {
          id: "",
          name: null,
          labels: {},
          status: "starting",
          template: "minimal",
          vcpus: 1,
          memory_mb: 512,
          disk_mb: 4_096,
          timeout_sec: 0,
          on_timeout: "pause",
          lifetime_sec: 0,
          expires_at: null,
          on_expiry: "destroy",
          retention_sec: 0,
          auto_resume: false,
          network: noNetwork,
          port_url: "",
          created_at: "",
          last_updated: "",
          started_at: null,
          last_active_at: null,
          error_reason: null,
          host: null,
        },
      );
      assert.equal(capsule.port_url, `http://{port}-${capsule.id}.localhost:8080`);
      assert.match(capsule.created_at, iso);
    }
  });

  test("uses the known fields and ignores others", async () => {
    const api = new Api();
    const asked = { template: "minimal", vcpus: 2, memory_mb: 256, timeout_sec: 60 };
    const { json } = await api.call("POST", "/v1/capsules", { json: { ...asked, color: "red", __proto__: null } });
    assert.deepEqual({ ...json, ...asked }, json);
  });

  const bad: [string, unknown][] = [
    ["a string for a number", { vcpus: "1" }],
    ["a fraction", { vcpus: 1.5 }],
    ["no virtual CPU", { vcpus: 0 }],
    ["too many virtual CPUs", { vcpus: 9 }],
    ["a negative number", { timeout_sec: -1 }],
    ["a number beyond every bound", { timeout_sec: 1e300 }],
    ["too little memory", { memory_mb: 127 }],
    ["too much memory", { memory_mb: 65_537 }],
    ["a list for a name", { template: ["minimal"] }],
    ["a NUL in a name", { template: "mini\u0000mal" }],
    ["a boolean", { memory_mb: true }],
  ];
  for (const [what, json] of bad) {
    test(`refuses ${what}, and names the field`, async () => {
      const reply = await new Api().call("POST", "/v1/capsules", { json });
      assert.equal(reply.status, 400);
      assert.equal(reply.json.error.code, "invalid_request");
      assert.deepEqual(reply.json.error.details, { field: Object.keys(json as object)[0] });
    });
  }

  test("null for an optional field is the same as leaving it out", async () => {
    const api = new Api();
    const sizes = { vcpus: null, memory_mb: null, disk_mb: null };
    const json = { ...sizes, template: null, timeout_sec: null, name: null, labels: null, envs: null };
    const nulls = (await api.call("POST", "/v1/capsules", { json })).json;
    const made = (await api.call("POST", "/v1/capsules", { json: {} })).json;
    const { id: _, port_url: __, created_at: ___, last_updated: ____, ...plain } = made;
    assert.deepEqual({ ...nulls, ...plain }, nulls);
    assert.deepEqual(Object.keys(made).toSorted(), Object.keys(nulls).toSorted());
  });

  for (const body of ["{", "[]", "null", '"text"', "NaN", '{"vcpus":NaN}', "{}{}", "\ufeff{}", '{"a":"\u0000"}']) {
    test(`refuses the body ${JSON.stringify(body)}`, async () => {
      const reply = await new Api().call("POST", "/v1/capsules", {
        body,
        headers: { "content-type": "application/json" },
      });
      assert.equal(reply.status, 400);
      assert.equal(reply.json.error.code, "invalid_request");
    });
  }

  test("refuses bytes that are not UTF-8", async () => {
    const body = Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]);
    const headers = { "content-type": "application/json; charset=utf-8" };
    assert.equal((await new Api().call("POST", "/v1/capsules", { body, headers })).status, 400);
  });

  test("refuses 2 MiB with 413, whatever the content", async () => {
    const api = new Api();
    const body = `{"template":"${"x".repeat(2 * 1024 * 1024)}"}`;
    const reply = await api.call("POST", "/v1/capsules", { body, headers: { "content-type": "application/json" } });
    assert.equal(reply.status, 413);
    assert.equal(reply.json.error.code, "too_large");
  });

  test("a body of exactly the limit is read, one byte more is not", async () => {
    const api = new Api({ body_max_bytes: 2_048 });
    const of = (length: number) => ({ body: "{}".padEnd(length), headers: { "content-type": "application/json" } });
    assert.equal((await api.call("POST", "/v1/capsules", of(2_048))).status, 201);
    assert.equal((await api.call("POST", "/v1/capsules", of(2_049))).status, 413);
  });

  for (const type of [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/jsonx",
    "nonsense",
    "text/html;",
  ]) {
    test(`refuses a body of type ${type} with 415`, async () => {
      const reply = await new Api().call("POST", "/v1/capsules", { body: "{}", headers: { "content-type": type } });
      assert.equal(reply.status, 415);
      assert.equal(reply.json.error.code, "unsupported_media_type");
    });
  }

  test("an unknown template is 404, however long its name", async () => {
    for (const template of ["nope", "x".repeat(10_000), "../../etc", ""]) {
      const reply = await new Api().call("POST", "/v1/capsules", { json: { template } });
      assert.equal(reply.status, 404);
      assert.equal(reply.json.error.code, "not_found");
    }
  });

  for (const code of ["agent_error", "quota_exceeded", "no_capacity"] as const) {
    test(`the service's ${code} is ${statusOf[code]}`, async () => {
      const api = new Api();
      api.service.host.admitStart = () => {
        throw new CapsuleError(code, "the reason", { details: { left: 0 } });
      };
      const reply = await api.call("POST", "/v1/capsules");
      assert.equal(reply.status, statusOf[code]);
      assert.deepEqual(reply.json, { error: { code, message: "the reason", details: { left: 0 } } });
      const retries = code === "quota_exceeded" || code === "no_capacity";
      assert.equal(reply.headers["retry-after"] !== undefined, retries);
    });
  }
});

describe("reading capsules", () => {
  test("a list is the team's own, newest first, and [] when there is none", async () => {
    const api = new Api();
    assert.equal((await api.call("GET", "/v1/capsules")).text, "[]");
    const ids = [await api.capsule("running"), await api.capsule("paused"), await api.capsule("error")];
    await api.capsule("running", keys.blue);
    const { json } = await api.call("GET", "/v1/capsules");
    assert.deepEqual(
      json.map(({ id }: { id: string }) => id),
      ids.reverse(),
    );
  });

  test("get has the status, its times and the reason of an error", async () => {
    const api = new Api();
    const id = await api.capsule("running");
    const running = (await api.call("GET", `/v1/capsules/${id}`)).json;
    assert.equal(running.status, "running");
    assert.match(running.started_at, iso);
    assert.equal(running.last_active_at, null);
    await api.become(id, "error", "the VM died");
    assert.equal((await api.call("GET", `/v1/capsules/${id}`)).json.error_reason, "the VM died");
  });

  test("wait delays the response until the status is reached", async () => {
    const api = new Api();
    const id = await api.capsule("starting");
    const waiting = api.call("GET", `/v1/capsules/${id}?wait=running&timeout=30`);
    await waitFor("the request waits", () => api.waits === 1);
    await api.become(id, "running");
    assert.equal((await waiting).json.status, "running");
  });

  test("wait returns the current status at its timeout", async () => {
    const api = new Api();
    const id = await api.capsule("starting");
    assert.equal((await api.call("GET", `/v1/capsules/${id}?wait=running&timeout=0`)).json.status, "starting");
  });

  test("wait without a timeout is bounded by the operator's limit", async (t) => {
    for (const [wait_max_sec, waitedMs] of [
      [300, 30_000],
      [1, 1_000],
    ] as const) {
      const api = new Api({ wait_max_sec });
      const { mock } = t.mock.method(api.service.capsules, "wait");
      await api.call("GET", `/v1/capsules/${await api.capsule()}?wait=running`);
      assert.deepEqual(
        mock.calls.map((call) => call.arguments[3]),
        [waitedMs],
      );
    }
  });

  for (const query of [
    "wait=",
    "wait=ready",
    "wait=running&timeout=-1",
    "wait=running&timeout=1.5",
    "timeout=x",
    "wait=running&timeout=301",
    "wait=running&wait=paused",
  ]) {
    test(`?${query} is 400`, async () => {
      const api = new Api();
      assert.equal((await api.call("GET", `/v1/capsules/${await api.capsule()}?${query}`)).status, 400);
    });
  }
});

describe("changing capsules", () => {
  test("pause, resume, ping and destroy answer as specified", async () => {
    const api = new Api();
    const id = await api.capsule("running");
    const ping = await api.call("POST", `/v1/capsules/${id}/ping`);
    assert.deepEqual([ping.status, ping.text], [204, ""]);
    assert.match((await api.call("GET", `/v1/capsules/${id}`)).json.last_active_at, iso);
    const paused = await api.call("POST", `/v1/capsules/${id}/pause`);
    assert.deepEqual([paused.status, paused.json.status], [200, "paused"]);
    assert.equal((await api.call("POST", `/v1/capsules/${id}/pause`)).status, 409);
    const resumed = await api.call("POST", `/v1/capsules/${id}/resume`);
    assert.deepEqual([resumed.status, resumed.json.status], [200, "running"]);
    assert.equal((await api.call("POST", `/v1/capsules/${id}/resume`)).status, 409);
    const gone = await api.call("DELETE", `/v1/capsules/${id}`);
    assert.deepEqual([gone.status, gone.text], [204, ""]);
    assert.equal((await api.call("DELETE", `/v1/capsules/${id}`)).status, 404);
    assert.equal((await api.call("GET", `/v1/capsules/${id}`)).status, 404);
  });

  for (const status of ["starting", "running", "paused", "stopped", "error"] as const) {
    test(`destroy works from ${status}`, async () => {
      const api = new Api();
      assert.equal((await api.call("DELETE", `/v1/capsules/${await api.capsule(status)}`)).status, 204);
    });
  }

  test("an unexpected error is answered with internal_error and logged in full", async () => {
    const api = new Api();
    const id = await api.capsule("running");
    api.service.capsules.pause = () => {
      throw new TypeError("the inner reason", { cause: new Error("the root") });
    };
    const reply = await api.call("POST", `/v1/capsules/${id}/pause`);
    assert.equal(reply.status, 500);
    assert.equal(reply.json.error.code, "internal_error");
    assert.doesNotMatch(reply.text, /inner reason/);
    const logged = api.log.join("");
    assert.match(logged, /the inner reason/);
    assert.match(logged, /the root/);
    assert.ok(logged.includes(String(reply.headers["x-request-id"])));
  });
});
