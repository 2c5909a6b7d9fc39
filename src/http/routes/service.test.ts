import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { FixedLimits, Limits } from "../../wire/limits.ts";

describe("GET /healthz", () => {
  test("needs no key and has version, accelerator, pid and counts", async () => {
    const api = new Api();
    await api.capsule("running");
    await api.capsule("paused");
    const { status, json } = await api.call("GET", "/healthz", { key: null });
    assert.equal(status, 200);
    assert.deepEqual(json, {
      ready: true,
      creates: true,
      reasons: [],
      version: "0.0.0",
      accelerator: "tcg",
      accelerator_reason: "a fake",
      jail: { mode: "off", cgroup: "none", missing: ["a fake"] },
      pid: process.pid,
      capsules: { pending: 0, starting: 0, running: 1, paused: 1, stopped: 0, error: 0 },
      pool: { ready: 0, target: 0 },
      warm_processes: { ready: 0, target: 0 },
      network: { relay: "up", egress: "none", port_domain: "localhost" },
    });
  });

  test("is 503 with the reasons while no capsule can be made", async () => {
    const api = new Api();
    api.service.health.shortages = ["the host's disk is full"];
    const { status, json } = await api.call("GET", "/healthz", { key: null });
    assert.equal(status, 503);
    assert.deepEqual([json.ready, json.creates, json.reasons], [false, false, ["the host's disk is full"]]);
  });

  test("is 200 while the relay is down, and says so", async () => {
    const api = new Api();
    api.service.health.relay = "down";
    const { status, json } = await api.call("GET", "/healthz", { key: null });
    assert.deepEqual([status, json.ready, json.creates, json.network.relay], [200, true, true, "down"]);
  });

  test("tells clients elsewhere, and those behind a proxy on this machine, no more than whether it is ready", async () => {
    const api = new Api();
    const elsewhere = { remoteAddress: "10.0.0.1" };
    const fields = async (options: object) =>
      Object.keys((await api.app.inject({ url: "/healthz", ...options })).json());
    assert.deepEqual(await fields(elsewhere), ["ready"]);
    assert.deepEqual(await fields({ ...elsewhere, headers: { "x-api-key": "capk_guess" } }), ["ready"]);
    assert.deepEqual(await fields({ headers: { host: "capsules.example.org" } }), ["ready"]);
    assert.ok((await fields({ ...elsewhere, headers: { "x-api-key": keys.blue } })).includes("pid"));
    assert.ok((await fields({})).includes("pid"));
    api.service.health.shortages = ["the host's disk is full"];
    assert.deepEqual((await api.app.inject({ url: "/healthz", ...elsewhere })).json(), { ready: false });
  });

  test("charges a wrong key as every other route does, and never a request without one", async () => {
    const api = new Api({ refused_keys_per_sec: 1, open_requests_per_sec: 1_000 });
    const ask = async (headers: Record<string, string>) =>
      (await api.app.inject({ url: "/healthz", remoteAddress: "10.0.0.1", headers })).statusCode;
    const guess = { "x-api-key": "capk_guess" };
    const statuses = new Set<number>();
    for (let sent = 0; sent < 200; sent++) statuses.add(await ask(guess));
    assert.deepEqual([...statuses], [200, 429]);
    assert.deepEqual([await ask({}), await ask({ "x-api-key": keys.red })], [200, 200]);
  });
});

/** Limits by which a request can be refused, cut, closed or kept waiting. */
const named = [
  ...["keys_max", "tickets_max", "sign_in_links_max", "event_streams_max", "events_kept_max"],
  ...["capsule_processes_max", "capsule_file_operations_max", "exits_kept_max", "terminal_replay_max_bytes"],
  ...["output_lag_max_bytes", "terminal_input_max_bytes", "listing_max_bytes", "process_list_max_bytes"],
  ...["processes_listed_max", "answers_max_bytes", "team_answers_max_bytes", "socket_first_message_max_sec"],
  ...["upload_stall_max_sec", "read_stall_max_sec", "body_max_sec", "headers_max_bytes", "headers_max_sec"],
  ...["credentials_per_min", "credentials_burst_max", "pipelined_requests_max"],
  ...["template_name_max_length", "connections_per_address_max", "socket_unread_max_bytes", "wait_max_sec"],
];

test("GET /v1/limits has every limit", async () => {
  const api = new Api({ vcpus_max: 3 }, { stallMs: 5_000 });
  const { json } = await api.call("GET", "/v1/limits");
  const { usage, ...limits } = json;
  const settings = Object.fromEntries(Object.keys(api.limits).map((name) => [name, limits[name]]));
  assert.deepEqual(settings, api.limits);
  const names = [...Object.keys(Limits.properties), ...Object.keys(FixedLimits.properties)];
  assert.deepEqual(Object.keys(limits).sort(), names.sort());
  for (const name of named) assert.ok(Number.isInteger(limits[name]) && limits[name] > 0, name);
  assert.equal(limits.read_stall_max_sec, 5, "as the server was built");
  assert.deepEqual(usage, {
    capsules: 0,
    running_vcpus: 0,
    running_memory_mb: 0,
    disk_bytes: 0,
    templates: 0,
    sockets: 0,
    requests: 1,
  });
  await api.capsule("running");
  assert.equal((await api.call("GET", "/v1/limits")).json.usage.running_memory_mb, 512);
  assert.equal((await api.call("GET", "/v1/limits", { key: keys.blue })).json.usage.capsules, 0);
});

test("keys, commands, output and queries are never logged", async () => {
  const api = new Api();
  const id = await api.capsule();
  const secret = "s3cr3t";
  const agent = api.agent(id);
  agent.onRun = (run) => {
    run.print("stdout", secret);
    if (run.command.args[0] === "fail") run.fail(new Error("the guest is gone"));
    else run.exit(0);
  };
  const exec = (json: object) => api.call("POST", `/v1/capsules/${id}/exec`, { json });
  const given = { args: [secret], envs: { SECRET: secret }, cwd: `/${secret}` };
  for (const cmd of ["echo", "nope", "hang"]) await exec({ cmd, ...given });
  assert.equal((await exec({ cmd: "hang", ...given, args: ["fail"] })).status, 500);
  await exec({ cmd: secret, timeout: secret });
  await api.call("POST", `/v1/capsules/${id}/exec`, {
    body: `{"cmd":"${secret}`,
    headers: { "content-type": "application/json" },
  });
  await api.call("GET", "/v1/capsules", { key: `capk_${secret}` });
  assert.equal((await api.call("POST", `/v1/capsules/${id}/exec?ticket=${secret}`)).status, 400);
  const log = api.log.join("");
  assert.ok(api.log.length >= 8);
  assert.match(log, /the guest is gone/);
  for (const word of [secret, keys.red, "ticket"]) assert.ok(!log.includes(word), word);
});
