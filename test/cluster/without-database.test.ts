/** Hosts that start, or go on, while the cluster's database is away. */
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { newClusterFile } from "../../src/cluster/cluster-file.ts";
import { hostsKeptIn, readHostFile } from "../../src/cluster/host-file.ts";
import { joinCluster } from "../../src/cluster/joining.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { addTeams, created, hostOfCluster } from "./fake-hosts.ts";
import { Link } from "./link.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase, clusterId, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const work = mkdtempSync(join(tmpdir(), "capsule-without-"));
after(() => rmSync(work, { recursive: true }));
/** Nobody listens there. */
const away = "postgres://nobody@127.0.0.1:1/nothing";
const silent = { info() {}, warn() {}, error() {} };

async function joined(dataDir: string, url: string) {
  const sql = await Postgres.open({ url, ...patient });
  const file = { ...newClusterFile(url, Buffer.alloc(32)), cluster: clusterId };
  const holdings = () => ({ capsules: 0, teams: [], keys: [], templates: [] });
  return await joinCluster({
    ...{ sql, file, dataDir, name: "d", machineName: "d", version: "0.0.0", holdings, log: silent },
    peer: { address: undefined, port: 8_079 },
  }).finally(() => sql.close());
}

test("a folder starts without the database where it has joined, and a copy of it does not", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const [dataDir, copy] = [mkdtempSync(join(work, "data-")), join(work, "copy")];
  const { me, limits } = await joined(dataDir, database.url);
  const other = { name: "b", address: "10.0.0.2", port: 8_079, epoch: 2 };
  hostsKeptIn(dataDir, silent)([other]);
  assert.deepEqual(await joined(dataDir, away), { me, limits, hosts: [other] });
  cpSync(dataDir, copy, { recursive: true });
  const before = readHostFile(copy);
  await assert.rejects(joined(copy, away), /was copied or moved since it joined as host d: start it when/);
  assert.deepEqual(readHostFile(copy), before);
  assert.deepEqual((await joined(dataDir, database.url)).me, { ...me, epoch: me.epoch + 1 });
});

test("a host that starts without the database asks the hosts that it knew", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await addTeams(database);
  await using holder = await hostOfCluster(database, "b");
  const id = await created(holder);
  let kept: { name: string; address: string; port: number; epoch: number }[] = [];
  const first = await hostOfCluster(database, "a", { onHosts: (hosts) => (kept = [...hosts]) });
  await first.second();
  await first.kill();
  assert.deepEqual(
    kept.map(({ name }) => name),
    ["b", "c"],
  );
  await using link = await Link.to(server);
  link.cut();
  await using a = await hostOfCluster(database, "a", { link, epoch: 2, lastHeard: kept });
  assert.deepEqual(a.cluster.locations.peers(), ["b", "c"]);
  assert.deepEqual(await a.cluster.locations.find("team-red", id), { at: "host", host: "b" });
});

test("what was opened with a key ends when keys were not compared for 900 s, and once", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await addTeams(database);
  await using link = await Link.to(server);
  await using a = await hostOfCluster(database, "a", { link });
  a.cluster.catalog.onStale(900_000, () => a.service.teams.endOpened());
  let ends = 0;
  const open = () => a.services.teams.onRevoked("key-red", () => ends++);
  open();
  await a.second();
  link.cut();
  a.clock.advance(899_000);
  assert.equal(ends, 0);
  a.clock.advance(2_000);
  assert.equal(ends, 1);
  a.clock.advance(2_000_000);
  assert.equal(ends, 1);
  open();
  a.clock.advance(900_000);
  assert.equal(ends, 2);
});

test("signed URLs and tickets are not accepted when keys were not compared for 900 s", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await addTeams(database);
  await using link = await Link.to(server);
  await using a = await hostOfCluster(database, "a", { link, limits: { refused_keys_per_sec: 1 } });
  const path = `/v1/capsules/${await created(a)}`;
  const { json: signed } = await a.call("POST", `${path}/files/url`, { path: "/root/f", method: "GET" });
  const { json: issued } = await a.call("POST", "/v1/ws-tickets", { path: `${path}/pty` });
  const { pathname, search } = new URL(signed.url);
  const download = async () => (await a.app.inject(`${pathname}${search}`)).statusCode;
  const { keyId } = a.forwarder.tickets!.open(issued.ticket, `${path}/pty`)!;
  await a.second();
  link.cut();
  a.clock.advance(899_000);
  assert.equal(await download(), 404, "there is no such file in it");
  assert.equal(a.services.teams.holderOf(keyId)?.keyId, keyId);
  a.clock.advance(2_000);
  // More of them than an address may send with a wrong signature.
  for (let count = 0; count < 25; count++) assert.equal(await download(), 503);
  assert.throws(() => a.services.teams.holderOf(keyId), { code: "unavailable" });
});
