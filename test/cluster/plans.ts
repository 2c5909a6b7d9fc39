/**
 * `node test/cluster/plans.ts [CAPSULES]` prints the plans of the cluster's statements, those in functions included, as auto_explain writes
 * them to the log of PostgreSQL, and fails where one reads all capsules. PostgreSQL reads a small table without its indexes: below 100 000
 * capsules enable_seqscan is off, and only a statement without an index is read so then.
 */
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { drainHost, heldBy } from "../../src/cluster/host-list.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { columnsOf } from "../../src/cluster/rows.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { hostOfCluster } from "./fake-hosts.ts";
import { PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, creating, joining, patient } from "./statements.ts";

const count = Number(process.argv[2] ?? 3_000);

interface Node {
  "Node Type": string;
  "Relation Name"?: string;
  "Index Name"?: string;
  "Actual Rows"?: number;
  "Actual Total Time"?: number;
  Plans?: Node[];
}

interface Explained {
  "Query Text": string;
  Plan: Node;
}

/** Tables that grow with the capsules of a cluster. */
const large = new Set(["capsules", "tombstones", "garbage"]);

/** Capsules of 100 teams on 8 hosts: three of five are released, and one of 25 runs. */
async function fill({ sql }: ClusterDatabase): Promise<void> {
  const row = { ...columnsOf(capsuleRow("cl-0", { teamId: "team-0" })), host: null, epoch: 1, copy: 1, version: 1 };
  const run = (text: string, values: unknown[] = []) =>
    sql.query(text, values, { ...about, onceMs: 3_600_000, allMs: 3_600_000 });
  await run(
    "INSERT INTO teams (id, name, created_at, version, catalog) SELECT 'team-' || i, 'name-' || i, 1, 100000, 1 FROM generate_series(0, 99) i",
  );
  for (let host = 0; host < 8; host++) await sql.call("join_host", joining(`host-${host}`), about);
  await run("ALTER TABLE capsules DISABLE TRIGGER listed_place"); // which looks for a place for each
  await run(
    `INSERT INTO capsules SELECT r.* FROM generate_series(1, $2::int) i, LATERAL jsonb_populate_record(NULL::capsules, $1::jsonb || jsonb_build_object(
       'id', 'cl-' || lpad(i::text, 25, '0'), 'team_id', 'team-' || i % 100, 'seq', i, 'version', i / 100, 'name', 'name-' || i,
       'created_at', i, 'last_updated', now_ms() - i, 'retention_sec', CASE WHEN i % 2 = 0 THEN 604800 ELSE 0 END,
       'host', CASE WHEN i % 10 < 4 THEN 'host-' || i / 10 % 8 END, 'last_host', 'host-' || i / 10 % 8,
       'status', CASE WHEN i % 100 IN (0, 11, 22, 33) THEN 'running' ELSE 'paused' END, 'intent', NULL,
       'checkpoint', CASE WHEN i % 10 >= 4 THEN 'capsules/cl-' || i || '/1' END, 'moving', CASE WHEN i % 10000 = 7 THEN true END)
     ) r`,
    [JSON.stringify(row), count],
  );
  await run("ALTER TABLE capsules ENABLE TRIGGER listed_place");
  await run(
    "INSERT INTO garbage SELECT 'capsules/cl-x/' || i, now_ms() - i * 1000, NULL FROM generate_series(1, $1::int) i",
    [count / 10],
  );
  await run(
    "INSERT INTO tombstones (id, team_id, version, host, epoch, at) SELECT 'cl-gone-' || i, 'team-' || i % 100, i / 100, NULL, 1, now_ms() - i FROM generate_series(1, $1::int) i",
    [count / 10],
  );
  await run("ANALYZE");
}

const longId = (number: number) => `cl-${String(number).padStart(25, "0")}`;

/** From now on each statement of new connections is explained in the server's log. */
async function explained({ sql, url }: ClusterDatabase): Promise<Postgres & AsyncDisposable> {
  const [{ name }] = (await sql.query<{ name: string }>("SELECT current_database() AS name", [], about)) as [
    { name: string },
  ];
  const settings = {
    session_preload_libraries: "auto_explain",
    ...{
      "auto_explain.log_min_duration": "0",
      "auto_explain.log_nested_statements": "on",
      "auto_explain.log_format": "json",
    },
    "auto_explain.log_analyze": "on",
    ...(count < 100_000 ? { enable_seqscan: "off" } : {}),
  };
  for (const [setting, value] of Object.entries(settings))
    await sql.query(`ALTER DATABASE ${name} SET ${setting} = '${value}'`, [], about);
  const opened = await Postgres.open({ url, ...patient });
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() });
}

/** The statements that the log has, in their order. */
function readLog(file: string): Explained[] {
  const entries = readFileSync(file, "utf8").split(/^(?!\t)/m);
  return entries.flatMap((entry) => {
    const at = entry.indexOf("\n\t{");
    if (!/ plan:$/m.test(entry) || at < 0) return [];
    return [JSON.parse(entry.slice(at).replaceAll("\n\t", "\n")) as Explained];
  });
}

function nodesOf(plan: Node): Node[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)];
}

const isLarge = ({ "Relation Name": relation = "" }: Node) => large.has(relation);

const isSequential = (node: Node) => node["Node Type"] === "Seq Scan" && isLarge(node);

function shown({ Plan, "Query Text": text }: Explained): string {
  const scans = nodesOf(Plan).filter((node) => isLarge(node) || node["Index Name"] !== undefined);
  const parts = scans.map(
    (node) => `${node["Node Type"]} ${node["Index Name"] ?? node["Relation Name"]} (${node["Actual Rows"]} rows)`,
  );
  return `  ${Plan["Actual Total Time"]} ms  ${parts.join(", ")}: ${text.replaceAll(/\s+/g, " ").slice(0, 100)}`;
}

async function explain(server: PostgresServer): Promise<void> {
  await using database = await clusterDatabase(server);
  await fill(database);
  await using sql = await explained(database);
  const machine = new FakeHost();
  await using host = await hostOfCluster(database, "z", { machine, uploads: new FakeUploads(machine) });
  const mark = (name: string) => sql.query(`SELECT '${name}' AS mark`, [], about);
  const call = (name: string, ...values: unknown[]) =>
    sql.call(name, values, { ...about, onceMs: 600_000, allMs: 600_000 });
  const steps: Record<string, () => Promise<unknown>> = {
    list: async () => {
      const { capsules } = host.services;
      for await (const _turn of capsules.find("team-7", {}, { limit: 100 } as never)) break;
    },
    usage: () => host.cluster.listing.usage("team-7"),
    changes: async () => {
      const opened = await host.cluster.changes.open("team-7", `${Math.floor(count / 100) - 3}`, (of) => of);
      opened.end();
    },
    "find by id": () => host.cluster.locations.find("team-7", longId(107)),
    "find by name": () => host.cluster.locations.find("team-7", "name-207"),
    "sums of quotas, places of a list": () =>
      call("create_capsule", ...creating("host-0", capsuleRow("cl-new", { teamId: "team-7" }))),
    "lost host": async () => {
      const text = "SELECT epoch, heartbeat FROM hosts WHERE name = 'host-1'";
      const [row] = await sql.query<{ epoch: number; heartbeat: number }>(text, [], about);
      await call("lose_host", "host-1", row!.epoch, row!.heartbeat, 500);
    },
    retention: () => call("end_released", 100),
    "moving ones": () => host.second(),
    garbage: () => call("take_garbage", 1_000, 1_000, 100),
    "comparison of a host": async () => {
      host.clock.advance(60_000);
      await host.cluster.settled();
    },
    drain: async () => {
      await drainHost(sql, "host-2");
      await call("follow_moves", "host-2");
      await heldBy(sql, "host-2", 100);
    },
  };
  for (const [name, step] of Object.entries(steps)) {
    await mark(name);
    await step();
  }
  await mark("end");
  const plans = new Map<string, Explained[]>();
  let current: Explained[] = [];
  for (const each of readLog(server.log!)) {
    const name = /^SELECT '(.*)' AS mark$/.exec(each["Query Text"])?.[1];
    if (name === undefined) {
      current.push(each);
      continue;
    }
    current = [];
    plans.set(name, current);
  }
  const sequential: string[] = [];
  for (const name of Object.keys(steps)) {
    const ofLarge = plans.get(name)!.filter(({ Plan }) => nodesOf(Plan).some(isLarge));
    const first = new Map(ofLarge.toReversed().map((each) => [each["Query Text"], each]));
    console.log([name, ...[...first.values()].reverse().map(shown)].join("\n"));
    assert.notEqual(ofLarge.length, 0, `${name} reads no table`);
    sequential.push(
      ...ofLarge.filter(({ Plan }) => nodesOf(Plan).some(isSequential)).map((each) => each["Query Text"]),
    );
  }
  assert.deepEqual(sequential, []);
}

const server = await PostgresServer.startIn(mkdtempSync(join(tmpdir(), "capsule-plans-")), { logs: true });
try {
  await explain(server);
} finally {
  await server.stop();
  rmSync(server.folder, { recursive: true });
}
