/** The alert rules and the Grafana board of deploy/ name metrics, labels and settings that exist, and the rules fire. */
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { fakeService } from "../../test/fakes/fake-service.ts";
import { configHelp } from "../config.ts";
import { Metrics } from "./metrics.ts";

const deploy = resolve(import.meta.dirname, "../../deploy");
const rules = readFileSync(join(deploy, "alerts.yml"), "utf8");
const expressions = [...rules.matchAll(/^ +expr: (.+)$/gm)].map(([, expression]) => expression!);

interface Panel {
  id: number;
  title: string;
  gridPos: Record<"x" | "y" | "w" | "h", number>;
  targets: { expr: string; legendFormat: string }[];
}
const board = JSON.parse(readFileSync(join(deploy, "grafana.json"), "utf8")) as { uid: string; panels: Panel[] };

/** The text of /metrics after each event that a rule or a panel asks for. */
async function exposed(): Promise<string[]> {
  const { health } = fakeService();
  const bucket = { isUp: true, unreleased: 1, unreleasedSec: 2 };
  const metrics = new Metrics({
    state: () => health.state(),
    vmMemory: async () => ({ vms: 0, rssBytes: 0, pssBytes: 0 }),
    spareBytes: () => -1,
    diskSpareBytes: () => -1,
    lostFolders: () => 1,
    adopting: () => 0,
    cluster: () => ({
      isDatabaseUp: true,
      copyLagSec: 0,
      contradictions: 0,
      isPutBack: false,
      forwarded: { answered: 1 },
      acquires: { held: 1 },
      hosts: { up: 1, unreachable: 1, expired: 0, drained: 0 },
      statements: { answered: 1 },
      bucket,
    }),
    relay: () => ({ isUp: true, restarts: 1, connectionsOpen: 2, memoryBytes: 300 }),
  });
  metrics.statusReached("error");
  metrics.createBegan(true);
  metrics.created(0.1);
  metrics.execStarted()();
  metrics.socketClosed(1000);
  metrics.network.counted({ connections: 1, denied: 1, failed: 1, bytesOut: 1, bytesIn: 1 });
  metrics.pausedUnderPressure("done");
  metrics.requestEnded("GET", "/v1/capsules", 200, 0.1);
  await metrics.observe("pause", "cl-a", async () => {});
  await assert.rejects(metrics.observe("pause", "cl-a", () => Promise.reject(new Error("failed"))));
  return (await metrics.text()).split("\n");
}

/** Labels that Prometheus adds itself. */
const isOfTarget = (pair: string) => /^(job|instance)=/.test(pair);

/** The metrics of an expression, with the labels as written, that no line has. */
function missing(expression: string, lines: string[]): string[] {
  const selectors = [...expression.matchAll(/\b([a-z]+_[a-z_0-9]+)\b(?:\{([^}]*)\})?/g)];
  const series = selectors.filter(([, name]) => /^(capsule|nodejs|process)_/.test(name!));
  assert.ok(series.length > 0 || expression.startsWith("up{"), `${expression} has no metric`);
  return series.flatMap(([written, name, labels = ""]) => {
    const pairs = labels.split(/, */).filter((pair) => pair !== "" && !isOfTarget(pair));
    const isThere = (line: string) => /^[a-z_0-9]+/.exec(line)?.[0] === name && pairs.every((it) => line.includes(it));
    return lines.some(isThere) ? [] : [written];
  });
}

test("each metric of a rule exists, with the labels that the rule asks for", async () => {
  const lines = await exposed();
  for (const each of expressions) assert.deepEqual(missing(each, lines), []);
  assert.deepEqual(missing('capsule_status_changes_total{status="nonsense"}', lines).length, 1, "the check itself");
});

test("each metric and label of the board exists, and its panels do not overlap", async () => {
  const lines = await exposed();
  const taken = new Map<string, string>();
  for (const { title, gridPos, targets } of board.panels) {
    for (const { expr, legendFormat } of targets) {
      assert.deepEqual(missing(expr, lines), [], title);
      const names = [...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].map(([, name]) => name!);
      const [, metric] = /\b(capsule_\w+)/.exec(expr) ?? [];
      for (const name of names)
        assert.ok(
          lines.some((line) => line.startsWith(`${metric}{`) && line.includes(`${name}="`)),
          `${title} asks for the label ${name}`,
        );
    }
    const { x, y, w, h } = gridPos;
    assert.ok(x + w <= 24, title);
    for (let column = x; column < x + w; column++)
      for (let row = y; row < y + h; row++) {
        assert.equal(taken.get(`${column} ${row}`), undefined, `${title} is over another panel`);
        taken.set(`${column} ${row}`, title);
      }
  }
  assert.equal(new Set(board.panels.map(({ id }) => id)).size, board.panels.length);
});

test("each rule has a severity, a sentence and a remedy, and settings that exist", () => {
  assert.equal(expressions.length, 16);
  for (const part of ["alert", "expr", "labels", "summary", "remedy"])
    assert.equal(rules.match(new RegExp(`\\b${part}: \\S`, "g"))?.length, expressions.length, part);
  for (const [name] of rules.matchAll(/CAPSULE_[A-Z_]+/g)) assert.ok(configHelp().includes(name), name);
});

/**
 * Alert, series, values of one a minute from minute 0, and the minutes at which it fires; at the others looked at it does not. A
 * counter above 0 in the first ten minutes of Prometheus may be new, and fires.
 */
type Case = [alert: string, series: string, values: string, fires: readonly number[]];
const looked = [1, 10, 12, 16, 20, 30] as const;
const failed = 'capsule_status_changes_total{status="error"}';
const operation = 'capsule_vm_operation_duration_seconds_count{operation="pause", outcome="failed"}';
const cases: Case[] = [
  ["CapsuleDown", 'up{job="capsule"}', "1x9 0x3 1x20", [12]],
  ["CapsuleDown", 'up{job="capsule"}', "1x9 0x1 1x20", []],
  ["CapsuleDown", 'up{job="another"}', "0x30", []],
  ["CapsulesFail", failed, "_x10 1x20", [10, 12, 16]],
  ["CapsulesFail", failed, "5x10 6x20", [1, 12, 16, 20]],
  ["CapsulesFail", failed, "5x40", [1]],
  ["CapsulesFail", 'capsule_status_changes_total{status="paused"}', "0+1x40", []],
  ["CapsuleOperationsFail", operation, "_x10 1x20", [10, 12, 16]],
  ["CapsuleOperationsFail", operation, "2x10 3x20", [1, 12, 16, 20]],
  ["CapsuleOperationsFail", operation.replace("failed", "done"), "0+1x40", []],
  ["CapsuleEventLoopSlow", 'nodejs_eventloop_lag_p99_seconds{job="capsule"}', "0.01x9 0.5x8 0.01x20", [16]],
  ["CapsuleEventLoopSlow", 'nodejs_eventloop_lag_p99_seconds{job="capsule"}', "0.09x40", []],
  ["CapsuleMemoryShort", "capsule_host_memory_spare_bytes", "5x9 -5x3 5x20", [12]],
  ["CapsuleDiskShort", "capsule_disk_spare_bytes", "5x9 -5x3 5x20", [12]],
  ["CapsuleDiskShort", "capsule_disk_spare_bytes", "5x9 -5x1 5x20", []],
  ["CapsulePressurePauses", 'capsule_memory_pressure_pauses_total{outcome="done"}', "_x10 1x20", [10, 12, 16]],
  ["CapsulePressurePauses", 'capsule_memory_pressure_pauses_total{outcome="ended"}', "1x10 2x20", [1, 12, 16, 20]],
  ["CapsuleRelayDown", "capsule_network_relay_up", "1x9 0x3 1x20", [12]],
  ["CapsuleRelayDown", "capsule_network_relay_up", "1x9 0x1 1x20", []],
  ["CapsuleClusterDisagrees", "capsule_cluster_contradictions", "0x10 1x4 0x20", [12]],
  ["CapsuleClusterDatabasePutBack", "capsule_cluster_database_put_back", "0x10 1x4 0x20", [12]],
  ["CapsuleClusterDatabaseAway", "capsule_cluster_database_up", "1x9 0x3 1x20", [12]],
  ["CapsuleClusterDatabaseAway", "capsule_cluster_database_up", "1x9 0x1 1x20", []],
  ["CapsuleClusterBehind", "capsule_cluster_copy_lag_seconds", "0x9 11x3 0x20", [12]],
  ["CapsuleClusterBehind", "capsule_cluster_copy_lag_seconds", "9x40", []],
  ["CapsuleClusterBucketAway", "capsule_cluster_bucket_up", "1x9 0x8 1x20", [16]],
  ["CapsuleClusterBucketAway", "capsule_cluster_bucket_up", "1x9 0x4 1x20", []],
  ["CapsuleClusterOnlyHere", "capsule_cluster_unreleased_age_seconds", "0x9 90x8 0x20", [16]],
  ["CapsuleClusterOnlyHere", "capsule_cluster_unreleased_age_seconds", "50x40", []],
  ["CapsuleClusterHostAway", 'capsule_cluster_hosts{state="unreachable"}', "0x9 1x4 0x20", [12]],
  ["CapsuleClusterHostAway", 'capsule_cluster_hosts{state="expired"}', "0x9 2x4 0x20", [12]],
  ["CapsuleClusterHostAway", 'capsule_cluster_hosts{state="expired"}', "0x9 1x1 0x20", []],
  ["CapsuleClusterHostAway", 'capsule_cluster_hosts{state="drained"}', "1x40", []],
  ["CapsuleFoldersLost", "capsule_lost_folders", "0x10 1x4 0x20", [12]],
];

const hasPromtool = spawnSync("promtool", ["--version"]).status === 0;
const skip = !hasPromtool && "needs promtool, of Debian's package prometheus";
test("each rule fires for the series that it is about, when it says, and for no others", { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-rules-"));
  try {
    const tests = cases.map(([alertname, series, values, fires]) => ({
      interval: "1m",
      input_series: [{ series, values }],
      promql_expr_test: looked.map((minute) => ({
        expr: 'count by (alertname) (ALERTS{alertstate="firing"})',
        eval_time: `${minute}m`,
        exp_samples: fires.includes(minute) ? [{ labels: `{alertname="${alertname}"}`, value: 1 }] : [],
      })),
    }));
    // JSON is YAML.
    writeFileSync(join(folder, "tests.json"), JSON.stringify({ rule_files: [join(deploy, "alerts.yml")], tests }));
    execFileSync("promtool", ["test", "rules", join(folder, "tests.json")], { stdio: "pipe", encoding: "utf8" });
  } finally {
    rmSync(folder, { recursive: true });
  }
  assert.deepEqual([...new Set(cases.map(([alert]) => alert))].length, expressions.length, "each rule has a case");
});
