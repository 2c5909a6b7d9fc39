import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { beginExec, fakeService, running } from "../../test/fakes/fake-service.ts";
import { Metrics, type MetricsSources } from "./metrics.ts";

function fresh(of: Partial<MetricsSources> = {}): {
  metrics: Metrics;
  metric: (line: string) => Promise<number | undefined>;
} {
  const { health } = fakeService();
  const vmMemory = async () => ({ vms: 2, rssBytes: 300, pssBytes: 200 });
  const metrics = new Metrics({
    state: () => health.state(),
    vmMemory,
    spareBytes: () => -400,
    diskSpareBytes: () => -500,
    lostFolders: () => 2,
    adopting: () => 3,
    relay: () => ({ isUp: true, restarts: 1, connectionsOpen: 2, memoryBytes: 300 }),
    ...of,
  });
  return {
    metrics,
    metric: async (name) => {
      const line = (await metrics.text()).split("\n").find((each) => each.startsWith(`${name} `));
      return line === undefined ? undefined : Number(line.slice(name.length));
    },
  };
}

const observed = (metrics: Metrics, host = new FakeHost()) =>
  fakeService({
    host,
    observers: {
      ...{ observe: metrics.observe, observeExec: () => metrics.execStarted() },
      onCreateBegan: (isWarm) => metrics.createBegan(isWarm),
      onCreated: (seconds) => metrics.created(seconds),
    },
  });

test("operations on VMs are counted by outcome", async () => {
  const { metrics, metric } = fresh();
  const host = new FakeHost();
  const service = observed(metrics, host);
  const id = await running(service);
  await service.capsules.pause(service.team, id);
  await service.capsules.resume(service.team, id);
  host.before = (verb) => assert.notEqual(verb, "save");
  await assert.rejects(service.capsules.pause(service.team, id));
  const count = (operation: string, outcome: string) =>
    metric(`capsule_vm_operation_duration_seconds_count{operation="${operation}",outcome="${outcome}"}`);
  assert.equal(await count("boot", "done"), 1);
  assert.equal(await count("pause", "done"), 1);
  assert.equal(await count("resume", "done"), 1);
  assert.equal(await count("pause", "failed"), 1);
  assert.equal(await count("boot", "failed"), undefined);
});

test("commands are counted while they run and after", async () => {
  const { metrics, metric } = fresh();
  const service = observed(metrics);
  const id = await running(service);
  const ends = [beginExec(service, id), beginExec(service, id)];
  assert.equal(await metric("capsule_execs_running"), 2);
  assert.equal(service.activity.isBusy(id), true);
  for (const end of ends) await end();
  assert.equal(service.activity.isBusy(id), false);
  assert.equal(await metric("capsule_execs_running"), 0);
  assert.equal(await metric("capsule_execs_total"), 2);
  assert.equal(await metric("capsule_exec_duration_seconds_count"), 2);
});

test("creates are counted by whether a warm capsule was ready, and measured until they run", async () => {
  const { metrics, metric } = fresh();
  const host = new FakeHost();
  const service = observed(metrics, host);
  await running(service);
  host.ahead.push("cl-warm");
  await running(service);
  const counts = ["hit", "miss"].map((warm) => metric(`capsule_creates_total{warm="${warm}"}`));
  assert.deepEqual(await Promise.all(counts), [1, 1]);
  assert.equal(await metric("capsule_create_duration_seconds_count"), 2);
});

test("closed WebSockets are counted by the codes of the API, and all codes of clients together", async () => {
  const { metrics, metric } = fresh();
  for (const code of [1000, 4401, 4401, 3000, 4999]) metrics.socketClosed(code);
  const counts = ["1000", "4401", "other", "3000"].map((code) => metric(`capsule_socket_closes_total{code="${code}"}`));
  assert.deepEqual(await Promise.all(counts), [1, 2, 2, undefined]);
});

test("requests at ports' URLs are counted by class of status, with their bytes and wakes", async () => {
  const { metrics, metric } = fresh();
  for (const status of [200, 204, 101, 502, undefined]) metrics.portRequestEnded(status);
  metrics.portBytesMoved("in", 10);
  metrics.portBytesMoved("out", 20);
  metrics.portBytesMoved("out", 1);
  metrics.portWoke();
  const requests = (status: string) => metric(`capsule_network_port_requests_total{status="${status}"}`);
  assert.deepEqual(await Promise.all(["2xx", "1xx", "5xx", "none"].map(requests)), [2, 1, 1, 1]);
  assert.equal(await metric('capsule_network_port_bytes_total{direction="in"}'), 10);
  assert.equal(await metric('capsule_network_port_bytes_total{direction="out"}'), 21);
  assert.equal(await metric("capsule_network_wakes_total"), 1);
});

test("metrics of the machine and of the process are registered", async () => {
  const { metric } = fresh();
  assert.equal(await metric("capsule_vms"), 2);
  assert.equal(await metric("capsule_vm_rss_bytes"), 300);
  assert.notEqual(await metric("capsule_pool_ready"), undefined);
  assert.notEqual(await metric("capsule_pool_target"), undefined);
  assert.notEqual(await metric("capsule_warm_processes_ready"), undefined);
  assert.notEqual(await metric("capsule_warm_processes_target"), undefined);
  assert.equal(await metric("capsule_vm_pss_bytes"), 200);
  assert.equal(await metric('capsule_info{version="0.0.0",accelerator="tcg"}'), 1);
  assert.ok(((await metric("process_resident_memory_bytes")) ?? 0) > 0);
  assert.notEqual(await metric("nodejs_eventloop_lag_p99_seconds"), undefined);
  assert.ok(((await metric("nodejs_heap_size_used_bytes")) ?? 0) > 0);
});

test("requests are counted by method, route and status", async () => {
  const { metrics, metric } = fresh();
  metrics.requestEnded("GET", "/v1/capsules/:id", 200, 0.002);
  metrics.requestEnded("GET", "/v1/capsules/:id", 200, 0.004);
  metrics.requestEnded("GET", "/v1/capsules/:id", 404, 0.004);
  const of = (field: string, labels: string) => metric(`capsule_http_request_duration_seconds_${field}{${labels}}`);
  const found = 'method="GET",route="/v1/capsules/:id",status="200"';
  assert.equal(await of("count", found), 2);
  assert.equal(await of("bucket", `le="0.0025",${found}`), 1);
  assert.equal(await of("bucket", `le="0.005",${found}`), 2);
  assert.equal(await of("count", 'method="GET",route="/v1/capsules/:id",status="404"'), 1);
});

test("memory beyond the reserve, and pauses for lack of it, are told", async () => {
  const { metrics, metric } = fresh();
  metrics.pausedUnderPressure("done");
  metrics.pausedUnderPressure("failed");
  metrics.pausedUnderPressure("ended");
  metrics.pausedUnderPressure("done");
  assert.equal(await metric("capsule_host_memory_spare_bytes"), -400);
  assert.equal(await metric("capsule_lost_folders"), 2);
  assert.equal(await metric("capsule_disk_spare_bytes"), -500);
  assert.equal(await metric("capsule_capsules_adopting"), 3);
  assert.equal(await metric('capsule_memory_pressure_pauses_total{outcome="done"}'), 2);
  assert.equal(await metric('capsule_memory_pressure_pauses_total{outcome="failed"}'), 1);
  assert.equal(await metric('capsule_memory_pressure_pauses_total{outcome="ended"}'), 1);
});

test("a host of a cluster shows its part in it, and a host alone shows none", async () => {
  const cluster = {
    ...{ isDatabaseUp: false, copyLagSec: 1.5, contradictions: 2, isPutBack: true },
    forwarded: { answered: 3, given_up: 1 },
    hosts: { up: 1, unreachable: 2, expired: 0, drained: 0 },
    statements: { answered: 50, refused: 6, unanswered: 7 },
  };
  const acquires = { acquired: 4, refused: 0 };
  const { metric } = fresh({ cluster: () => ({ ...cluster, acquires }) });
  assert.equal(await metric("capsule_cluster_database_up"), 0);
  assert.equal(await metric("capsule_cluster_copy_lag_seconds"), 1.5);
  assert.equal(await metric("capsule_cluster_contradictions"), 2);
  assert.equal(await metric("capsule_cluster_database_put_back"), 1);
  for (let times = 0; times < 2; times++)
    assert.equal(await metric('capsule_cluster_forwarded_requests_total{outcome="answered"}'), 3);
  assert.equal(await metric('capsule_cluster_acquires_total{outcome="acquired"}'), 4);
  assert.equal(await metric('capsule_cluster_hosts{state="unreachable"}'), 2);
  assert.equal(await metric('capsule_cluster_hosts{state="expired"}'), 0);
  assert.equal(await metric('capsule_cluster_statements_total{outcome="unanswered"}'), 7);
  assert.equal(await metric("capsule_cluster_bucket_up"), undefined);
  assert.equal(await fresh().metric("capsule_cluster_database_up"), undefined);
});

test("a host of a cluster with a bucket shows what it alone has", async () => {
  const bucket = { isUp: false, unreleased: 3, unreleasedSec: 61 };
  const cluster = {
    isDatabaseUp: true,
    copyLagSec: 0,
    contradictions: 0,
    isPutBack: false,
    forwarded: {},
    acquires: {},
    hosts: {},
    statements: {},
    bucket,
  };
  const { metric } = fresh({ cluster: () => cluster });
  assert.equal(await metric("capsule_cluster_bucket_up"), 0);
  assert.equal(await metric("capsule_cluster_unreleased_capsules"), 3);
  assert.equal(await metric("capsule_cluster_unreleased_age_seconds"), 61);
  bucket.isUp = true;
  assert.equal(await metric("capsule_cluster_bucket_up"), 1);
});

test("connections and questions of capsules are counted, and the relay is seen", async () => {
  const { metrics, metric } = fresh();
  const added = { connections: 5, denied: 3, failed: 2, bytesOut: 10, bytesIn: 20 };
  for (let times = 0; times < 2; times++) metrics.network.counted(added);
  const verdicts = ["allowed", "denied", "failed"].map((each) =>
    metric(`capsule_network_connections_total{verdict="${each}"}`),
  );
  assert.deepEqual(await Promise.all(verdicts), [10, 6, 4]);
  assert.equal(await metric('capsule_network_bytes_total{direction="out"}'), 20);
  assert.equal(await metric('capsule_network_bytes_total{direction="in"}'), 40);
  const gauges = ["connections_open", "relay_up", "relay_restarts", "relay_memory_bytes"];
  assert.deepEqual(await Promise.all(gauges.map((each) => metric(`capsule_network_${each}`))), [2, 1, 1, 300]);
  for (let each = 0; each < 20; each++) metrics.network.named({ [`result${each}`]: 1, answered: 2 });
  assert.equal(await metric('capsule_network_names_total{result="answered"}'), 40);
  assert.equal(await metric('capsule_network_names_total{result="other"}'), 13, "eight results at most have a name");
});
