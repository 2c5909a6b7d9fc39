/** The hosts of a cluster when one of them has left: what it had is theirs, and its name may be another's. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { drainHost, heldBy } from "../../src/cluster/host-list.ts";
import { FakeBucket, type FakeFiles } from "../fakes/fake-bucket.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase, joining } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

interface Host extends FakeHostOfCluster {
  files: FakeFiles;
}

async function world() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  await database.sql.query("DELETE FROM hosts", [], about);
  const bucket = new FakeBucket();
  const beds = new AsyncDisposableStack();
  beds.use(database);
  const host = async (name: string): Promise<Host> => {
    const machine = new FakeHost();
    const files = bucket.filesOf(machine);
    const uploads = new FakeUploads(machine, bucket.checkpoints);
    const made = await hostOfCluster(database, name, { machine, files, uploads, hostLostSec: 1 });
    beds.use(made);
    return Object.assign(made, { files });
  };
  const [a, b] = [await host("a"), await host("b")];
  for (const each of [a, b]) await each.second();
  /** Host a is drained, its server ends, and it leaves. */
  const leave = async () => {
    await drainHost(database.sql, "a");
    await waitFor("host a to hold nothing", async () => {
      for (const each of [a, b]) await each.second();
      return (await heldBy(database.sql, "a", 1)).count === 0;
    });
    await a.kill();
    await database.sql.call("leave_host", ["a", "nonce-a"], about);
  };
  return { ...database, a, b, host, leave, [Symbol.asyncDispose]: () => beds.disposeAsync() };
}

const seconds = async (host: Host, count: number) => {
  for (let passed = 0; passed < count; passed++) await host.second();
};

test("what the host has moved runs on, and what it has released resumes elsewhere", { skip }, async () => {
  await using cluster = await world();
  const { a, b, sql, leave } = cluster;
  const [moved, paused] = [await created(a), await created(a)];
  assert.equal((await a.call("POST", `/v1/capsules/${paused}/pause`)).status, 200);
  await leave();
  await seconds(b, 2);
  const shown = async (id: string) => {
    const { json } = await b.call("GET", `/v1/capsules/${id}`);
    return [json.status, json.host];
  };
  await waitFor("the capsule to have moved", async () => (await shown(moved))[0] === "running");
  assert.deepEqual(await shown(moved), ["running", "b"]);
  assert.deepEqual(await shown(paused), ["paused", null]);
  const [row] = await sql.query("SELECT last_host FROM capsules WHERE id = $1", [paused], about);
  assert.deepEqual(row, { last_host: "a" });
  assert.deepEqual(
    b.cluster.membership.hosts().map(({ name }) => name),
    ["b"],
  );
  const resumed = await b.call("POST", `/v1/capsules/${paused}/resume`);
  assert.deepEqual([resumed.status, resumed.json.host], [200, "b"]);
  await seconds(b, 20); // no host is judged as lost
  assert.equal((await b.call("POST", "/v1/capsules")).status, 201);
  assert.equal(b.cluster.report().contradictions, 0);
});

test("a host of the same name is another one, with later epochs", { skip }, async () => {
  await using cluster = await world();
  const { a, b, host, leave, sql } = cluster;
  const id = await created(a);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  const before = a.cluster.membership.me.epoch;
  await leave();
  await assert.rejects(sql.call("join_host", joining("a"), about), /the data folder has left the cluster as host a/);
  await sql.query("UPDATE left_hosts SET nonce = 'former'", [], about); // the next host of the tests has the nonce of its name
  const next = await host("a");
  assert.ok(next.cluster.membership.me.epoch > before);
  for (let passed = 0; passed < 70; passed++) for (const each of [next, b]) await each.second();
  const resumed = await next.call("POST", `/v1/capsules/${id}/resume`);
  assert.equal(resumed.status, 200, JSON.stringify(resumed.json));
  assert.deepEqual([next.cluster.report().contradictions, b.cluster.report().contradictions], [0, 0]);
  assert.deepEqual(next.refusals, []);
});
