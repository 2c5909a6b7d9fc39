/** A host that is drained: it takes no capsules, keeps none ready, and goes on with those that it holds. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { drainHost, heldBy, resumeHost } from "../../src/cluster/host-list.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, clusterId } from "./statements.ts";

const program = resolve(import.meta.dirname, "../../capsule");
const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const a = await hostOfCluster(database, "a");
  const b = await hostOfCluster(database, "b");
  const { sql } = database;
  const stateOf = async (name: string) =>
    (await sql.query<{ state: string }>("SELECT state FROM hosts WHERE name = $1", [name], about))[0]?.state;
  /** Each host hears of the other's state. */
  const second = async () => {
    for (const each of [a, b]) await each.second();
  };
  await second();
  return {
    ...{ database, sql, a, b, stateOf, second },
    async [Symbol.asyncDispose]() {
      for (const each of [a, b, database]) await each[Symbol.asyncDispose]();
    },
  };
}

/** `capsule admin hosts` with the file of this cluster, which has no bucket. */
function commandsOf(database: ClusterDatabase) {
  const folder = mkdtempSync(join(tmpdir(), "capsule-drain-"));
  const path = join(folder, "cluster.json");
  const secret = { secret: Buffer.alloc(32, 5), valuesKey: Buffer.alloc(32, 6) };
  writeClusterFile(path, { cluster: clusterId, postgres: database.url, bucket: undefined, ...secret });
  const env = { PATH: process.env.PATH, CAPSULE_CLUSTER: path, CAPSULE_DATA: folder };
  return {
    hosts: (...words: string[]) =>
      promisify(execFile)(program, ["admin", "hosts", ...words], { env }).catch((error) => error),
    [Symbol.dispose]: () => rmSync(folder, { recursive: true }),
  };
}

/** On which host each create is made, of four at each host. */
async function holdersOfNew(hosts: FakeHostOfCluster[]): Promise<string[]> {
  const holders: string[] = [];
  for (const host of hosts) {
    for (let count = 0; count < 4; count++) {
      const { status, json } = await host.call("POST", "/v1/capsules");
      assert.equal(status, 201, JSON.stringify(json));
      holders.push((await host.call("GET", `/v1/capsules/${json.id}`)).json.host);
    }
  }
  return holders;
}

test("new capsules are made on other hosts, and nothing is started ahead of time, until it is resumed", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, stateOf, second } = cluster;
  assert.equal(await drainHost(sql, "a"), "draining");
  assert.equal(a.machine.keepsReady, true);
  const { status, json } = await a.call("POST", "/v1/capsules");
  assert.equal(status, 503, "before it has heard of it");
  assert.match(json.error.message, /host a is drained, and takes no capsules/);
  await second();
  assert.deepEqual([a.machine.keepsReady, b.machine.keepsReady], [false, true]);
  assert.deepEqual(new Set(await holdersOfNew([a, b])), new Set(["b"]));
  assert.equal(await stateOf("a"), "drained");

  assert.equal(await resumeHost(sql, "a"), "up");
  await second();
  assert.equal(a.machine.keepsReady, true);
  assert.ok((await holdersOfNew([a])).includes("a"));
});

test("what it holds is paused, resumed, captured and destroyed there as before, and is drained when it is gone", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, sql, stateOf, second } = cluster;
  const [paused, running] = [await created(a), await created(a)];
  await a.call("POST", `/v1/capsules/${paused}/pause`);
  await a.copied();
  await drainHost(sql, "a");
  await second();
  assert.equal(await stateOf("a"), "draining");
  assert.equal((await b.call("POST", `/v1/capsules/${paused}/resume`)).status, 200);
  await a.service.settled();
  await a.copied();
  const { count, first } = await heldBy(sql, "a", 1);
  assert.deepEqual([count, first.length], [2, 1]);
  const made = await a.call("POST", "/v1/snapshots", { sandbox_id: paused, name: "tools" });
  assert.equal(made.status, 201, JSON.stringify(made.json));
  assert.equal((await b.call("DELETE", `/v1/capsules/${running}`)).status, 204);
  await second();
  assert.equal(await stateOf("a"), "drained");
  assert.deepEqual(await heldBy(sql, "a", 1), { count: 0, staying: 0, first: [] });
});

test("where all hosts are drained a create is refused for lack of room", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, sql, second } = cluster;
  for (const name of ["a", "b"]) await drainHost(sql, name);
  await second();
  const { status, json } = await a.call("POST", "/v1/capsules");
  assert.deepEqual([status, json.error.code], [503, "no_capacity"]);
});

test("a host whose create came late is drained no more", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, sql, stateOf, second } = cluster;
  const id = await created(a);
  await drainHost(sql, "a");
  await sql.query("UPDATE hosts SET state = 'drained' WHERE name = 'a'", [], about);
  await second();
  assert.equal(await stateOf("a"), "draining");
  assert.equal((await a.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  await second();
  assert.equal(await stateOf("a"), "drained");
});

test("the state outlives the host's server", { skip }, async () => {
  await using cluster = await twoHosts();
  const { database, a, sql, stateOf } = cluster;
  await drainHost(sql, "a");
  await a.second();
  await a.kill();
  await using again = await hostOfCluster(database, "a", { database: a.database, machine: a.machine });
  assert.deepEqual([await stateOf("a"), again.machine.keepsReady], ["drained", false]);
});

test("without a bucket the command names what the host holds, and waits for none of it", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, database, second } = cluster;
  const id = await created(a);
  await a.copied();
  using commands = commandsOf(database);
  const drain = (...words: string[]) => commands.hosts("drain", ...words);
  const held = `capsule: host a takes no capsules, and holds 1\n${id} running: the cluster has no bucket, by which it could be moved\n`;
  assert.equal((await drain("a")).stderr, held);
  const waited = await drain("a", "--wait"); // for nothing: all that it holds stays
  assert.deepEqual([waited.code, waited.stderr], [1, held]);
  assert.equal((await a.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  const emptied = await drain("a", "--wait");
  assert.equal(emptied.stderr, "capsule: host a takes no capsules, and holds none\n");
  const unknown = await drain("d");
  assert.match(unknown.stderr, /no host d\n.*List them by capsule admin hosts/s);
  await second();
});

test("the list of hosts says what is left on one that is drained, and why", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, database, sql } = cluster;
  const ids: string[] = [];
  for (let count = 0; count < 6; count++) ids.push(await created(a));
  ids.sort();
  using commands = commandsOf(database);
  await drainHost(sql, "a");
  await drainHost(sql, "b"); // it holds none
  await sql.call("note_stays", [[ids[0]], "a", 1, "no other host has memory free"], about);
  const unmoved = ids.slice(1, 5).map((id) => `${id} running: the cluster has no bucket, by which it could be moved`);
  const listing: string = (await commands.hosts()).stdout;
  assert.deepEqual(
    listing.split("\n").filter((line) => line.startsWith("\t")),
    [
      ...["6 left, 6 of which cannot be moved", `${ids[0]} running: no other host has memory free`],
      ...[...unmoved, "and 1 more"],
    ].map((line) => `\t${line}`),
  );
  const listed = JSON.parse((await commands.hosts("--json")).stdout) as object[];
  const fields = ["name", "state", "machine", "held", "live", "memory_mb", "backlog", "version", "last_seen_sec"];
  for (const host of listed) assert.deepEqual(Object.keys(host).sort(), fields.toSorted());
});

test("a host that is unknown, or was declared gone, is refused", { skip }, async () => {
  await using cluster = await twoHosts();
  const { sql } = cluster;
  await assert.rejects(drainHost(sql, "d"), { code: "not_found", message: /no host d$/ });
  await sql.query("UPDATE hosts SET state = 'gone' WHERE name = 'c'", [], about);
  await assert.rejects(drainHost(sql, "c"), { code: "conflict", message: /host c was declared gone/ });
});
