import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { buildFloors, running } from "../../test/fakes/floors.ts";
import { FakeServices } from "../../test/fakes/services.ts";
import { Metrics } from "./metrics.ts";
import { observeExecs, observeHost } from "./observe.ts";

function fresh(): { metrics: Metrics; figure: (line: string) => Promise<number | undefined> } {
  const { health } = new FakeServices();
  const vmMemory = async () => ({ vms: 2, rssBytes: 300, pssBytes: 200 });
  const metrics = new Metrics({ health: () => health.health(), vmMemory });
  return {
    metrics,
    figure: async (name) => {
      const line = (await metrics.text()).split("\n").find((each) => each.startsWith(`${name} `));
      return line === undefined ? undefined : Number(line.slice(name.length));
    },
  };
}

test("what is done to VMs is counted by outcome", async () => {
  const { metrics, figure } = fresh();
  const host = new FakeHost();
  const floors = buildFloors(observeHost(host, metrics.observe) as FakeHost);
  const id = await running(floors);
  await floors.capsules.pause(floors.team, id);
  await floors.capsules.resume(floors.team, id);
  host.before = (verb) => assert.notEqual(verb, "save");
  await assert.rejects(floors.capsules.pause(floors.team, id));
  const count = (operation: string, outcome: string) =>
    figure(`capsule_vm_operation_duration_seconds_count{operation="${operation}",outcome="${outcome}"}`);
  assert.equal(await count("boot", "done"), 1);
  assert.equal(await count("pause", "done"), 1);
  assert.equal(await count("resume", "done"), 1);
  assert.equal(await count("pause", "failed"), 1);
  assert.equal(await count("boot", "failed"), undefined);
});

test("commands are counted while they run and after", async () => {
  const { metrics, figure } = fresh();
  const { capsules } = new FakeServices();
  const watched = observeExecs(capsules, () => metrics.execBegan());
  const { id } = await watched.create("team-red", { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 });
  const end = watched.beginExec(id);
  assert.equal(capsules.of(id).busy, 1);
  assert.equal(await figure("capsule_execs_running"), 1);
  end();
  assert.equal(capsules.of(id).busy, 0);
  assert.equal(await figure("capsule_execs_running"), 0);
  assert.equal(await figure("capsule_execs_total"), 1);
});

test("the machine's and the process's figures are there", async () => {
  const { figure } = fresh();
  assert.equal(await figure("capsule_vms"), 2);
  assert.equal(await figure("capsule_vm_rss_bytes"), 300);
  assert.notEqual(await figure("capsule_pool_ready"), undefined);
  assert.notEqual(await figure("capsule_pool_target"), undefined);
  assert.notEqual(await figure("capsule_warm_processes_ready"), undefined);
  assert.notEqual(await figure("capsule_warm_processes_target"), undefined);
  assert.equal(await figure("capsule_vm_pss_bytes"), 200);
  assert.equal(await figure('capsule_info{version="0.0.0",accelerator="tcg"}'), 1);
  assert.ok(((await figure("process_resident_memory_bytes")) ?? 0) > 0);
  assert.notEqual(await figure("nodejs_eventloop_lag_p99_seconds"), undefined);
  assert.ok(((await figure("nodejs_heap_size_used_bytes")) ?? 0) > 0);
});

test("requests are counted by method, route and status", async () => {
  const { metrics, figure } = fresh();
  metrics.requestEnded("GET", "/v1/capsules/:id", 200, 0.002);
  metrics.requestEnded("GET", "/v1/capsules/:id", 200, 0.004);
  metrics.requestEnded("GET", "/v1/capsules/:id", 404, 0.004);
  const of = (field: string, labels: string) => figure(`capsule_http_request_duration_seconds_${field}{${labels}}`);
  const found = 'method="GET",route="/v1/capsules/:id",status="200"';
  assert.equal(await of("count", found), 2);
  assert.equal(await of("bucket", `le="0.0025",${found}`), 1);
  assert.equal(await of("bucket", `le="0.005",${found}`), 2);
  assert.equal(await of("count", 'method="GET",route="/v1/capsules/:id",status="404"'), 1);
});
