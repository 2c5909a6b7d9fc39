/** The last host of a cluster gets all capsules before it leaves: fake machines, a fake bucket, and PostgreSQL. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { drainHost, resumeHost } from "../../src/cluster/host-list.ts";
import { beginGathering, missingIn } from "../../src/cluster/last-host.ts";
import { FakeBucket } from "../fakes/fake-bucket.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor } from "../wait-for.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster, releaseAfterMs } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

/** Hosts a and b of a cluster with a bucket. */
async function world() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  await database.sql.query("DELETE FROM hosts", [], about);
  const bucket = new FakeBucket();
  const beds = new AsyncDisposableStack();
  beds.use(database);
  const host = async (name: string): Promise<FakeHostOfCluster> => {
    const machine = new FakeHost();
    const uploads = new FakeUploads(machine, bucket.checkpoints);
    const made = await hostOfCluster(database, name, { machine, files: bucket.filesOf(machine), uploads });
    return beds.use(made);
  };
  const [a, b] = [await host("a"), await host("b")];
  for (const each of [a, b]) await each.second();
  const { sql } = database;
  return {
    ...{ sql, bucket, a, b },
    /** A capsule that the host has paused and released. */
    async released(from: FakeHostOfCluster): Promise<string> {
      const id = await created(from);
      assert.equal((await from.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
      await waitFor("the capsule to be released", async () => {
        await from.second();
        return (await holders(id))[0]?.host === null;
      });
      return id;
    },
    holders,
    /** The machine of host b has died, and its operator has said so. */
    async loseB() {
      await b.kill();
      await sql.query("UPDATE hosts SET state = 'gone' WHERE name = 'b'", [], about);
    },
    [Symbol.asyncDispose]: () => beds.disposeAsync(),
  };

  async function holders(...ids: string[]): Promise<{ host: string | null; epoch: number }[]> {
    return await sql.query("SELECT host, epoch FROM capsules WHERE id = ANY($1) ORDER BY id", [ids], about);
  }
}

test("the last host brings all capsules here, and releases none of them", { skip }, async () => {
  await using cluster = await world();
  const { a, b, sql } = cluster;
  const ids = [await cluster.released(a), await cluster.released(b), await cluster.released(b)];
  await cluster.loseB();
  await beginGathering(sql, "a");
  await waitFor("all capsules to be here", async () => {
    await a.second();
    const { capsules, coming } = await missingIn(sql, "a", a.database, 10);
    return capsules + coming === 0;
  });
  const held = await cluster.holders(...ids);
  assert.deepEqual(
    held.map(({ host, epoch }) => [host, epoch]),
    [["a", 2], ["a", 2], ["a", 2]], // biome-ignore format: rows
  );
  for (let passedMs = 0; passedMs <= 2 * releaseAfterMs; passedMs += 1_000) await a.second();
  assert.deepEqual(await cluster.holders(...ids), held);
  for (const id of ids) {
    assert.equal((await a.call("GET", `/v1/capsules/${id}`)).json.status, "paused");
    assert.equal((await a.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
  }
});

test("a capsule that was moved runs again, and is waited for", { skip }, async () => {
  await using cluster = await world();
  const { a, b, sql } = cluster;
  const id = await cluster.released(b);
  await sql.query("UPDATE capsules SET moving = true WHERE id = $1", [id], about);
  await cluster.loseB();
  assert.deepEqual((await missingIn(sql, "a", a.database, 10)).capsules, 1);
  await beginGathering(sql, "a");
  await waitFor("the capsule to run here", async () => {
    await a.second();
    const { capsules, coming } = await missingIn(sql, "a", a.database, 10);
    return capsules + coming === 0;
  });
  const { json } = await a.call("GET", `/v1/capsules/${id}`);
  assert.deepEqual([json.status, json.host], ["running", "a"]);
});

test("a capsule that cannot be fetched is named with the reason, and tried again", { skip }, async () => {
  await using cluster = await world();
  const { a, b, sql, bucket } = cluster;
  const id = await cluster.released(b);
  await cluster.loseB();
  bucket.isAway = true;
  await beginGathering(sql, "a");
  const { capsules, first } = await waitFor("the reason", async () => {
    await a.second();
    const missing = await missingIn(sql, "a", a.database, 10);
    assert.equal(missing.capsules + missing.coming, 1, "also while it is tried");
    return typeof missing.first[0]?.why === "string" ? missing : undefined;
  });
  assert.deepEqual([capsules, first[0]?.id], [1, id]);
  assert.match(first[0]?.why ?? "", /bucket/);
  bucket.isAway = false;
  await waitFor("the capsule to be here", async () => {
    await a.second();
    return (await cluster.holders(id))[0]?.host === "a";
  });
});

test("a host that another one has joined gathers nothing, nor does one that is drained or resumed", {
  skip,
}, async () => {
  await using cluster = await world();
  const { a, b, sql } = cluster;
  await assert.rejects(beginGathering(sql, "a"), /host a is not the last one of its cluster/);
  const id = await cluster.released(b);
  await cluster.loseB();
  const isOn = async () => {
    await a.second();
    return a.cluster.gathering.isOn;
  };
  const mayGather = async (isAllowed: boolean) => {
    await sql.query("UPDATE hosts SET state = $1 WHERE name = 'b'", [isAllowed ? "gone" : "up"], about);
  };
  await beginGathering(sql, "a");
  await mayGather(false);
  assert.equal(await isOn(), false);
  await mayGather(true);
  await drainHost(sql, "a");
  assert.equal(await isOn(), false);
  await beginGathering(sql, "a"); // it takes capsules again
  await resumeHost(sql, "a");
  assert.equal(await isOn(), false);
  assert.deepEqual((await cluster.holders(id))[0], { host: null, epoch: 1 });
});
