/** Templates of a cluster with a bucket: captured on one host, used on every other one; over a real PostgreSQL and Ceph. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { openBucket } from "../../src/bucket/opening.ts";
import { FakeFolders } from "../fakes/fake-folders.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { waitFor } from "../wait-for.ts";
import { BucketLink } from "./bucket-link.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres || lacksCeph;
const sealing = { number: 1, key: randomBytes(32) };
const patient = { pauseMs: 1, attemptMs: 120_000, unseenMs: 0 };

describe("a template of a cluster with a bucket", { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-templates-"));
  let ceph: CephServer;
  let postgres: PostgresServer;
  before(async () => {
    chmodSync(folder, 0o755); // PostgreSQL has a user of its own
    [ceph, postgres] = await Promise.all([
      CephServer.startIn(join(folder, "ceph")),
      PostgresServer.startIn(join(folder, "postgres")),
    ]);
  });
  after(async () => {
    await Promise.all([ceph?.remove(), postgres?.stop()]);
    rmSync(folder, { recursive: true });
  });

  async function hosts(...names: string[]) {
    const stack = new AsyncDisposableStack();
    const database = stack.use(await clusterDatabase(postgres));
    await addTeams(database);
    const { link, bucket } = await BucketLink.to(await ceph.newBucket());
    stack.use(link);
    const all: { host: FakeHostOfCluster; folders: FakeFolders }[] = [];
    for (const name of names) {
      const machine = new FakeHost();
      const folders = stack.use(new FakeFolders(machine));
      const sealed = await openBucket({ ...bucket, sealing }, patient);
      all.push({
        host: stack.use(await hostOfCluster(database, name, { machine, bucket: { sealed, folders } })),
        folders,
      });
    }
    for (const { host } of all) await host.second(); // each has seen all others
    const named = async () => {
      const rows = await database.sql.query<{ key: string }>(
        "SELECT key FROM artifacts ORDER BY created_at",
        [],
        about,
      );
      return rows.map(({ key }) => key);
    };
    return { database, link, all, named, [Symbol.asyncDispose]: () => stack.disposeAsync() };
  }

  async function captured(host: FakeHostOfCluster, query = ""): Promise<string> {
    const id = await created(host);
    const { status, json } = await host.call("POST", `/v1/snapshots${query}`, { sandbox_id: id, name: "tools" });
    assert.equal(status, 201, JSON.stringify(json));
    return host.service.templateRows.named("team-red", "tools")!.storage;
  }

  const make = (host: FakeHostOfCluster) => host.call("POST", "/v1/capsules", { template: "tools" });
  const storages = ({ machine }: FakeHostOfCluster) => [...machine.templates.keys()];

  test("its host is asked first, and without it another one makes capsules of it, which remove it when it is deleted", async () => {
    await using cluster = await hosts("a", "b");
    const [{ host: a }, { host: b, folders }] = cluster.all as [(typeof cluster.all)[0], (typeof cluster.all)[0]];
    const storage = await captured(a);
    assert.deepEqual(await cluster.named(), [storage]);
    await b.second();
    const near = await make(b);
    assert.deepEqual([near.status, near.json.host], [201, "a"]);
    assert.deepEqual(storages(b), []);
    await a.service.settled();
    await a.copied();

    await a.kill();
    for (let passed = 0; passed < 13; passed++) await b.second();
    const { status, json } = await make(b);
    assert.deepEqual([status, json.host, json.template], [201, "b", "tools"]);
    await b.service.settled();
    assert.equal((await b.call("GET", `/v1/capsules/${json.id}`)).json.status, "running");
    assert.equal(folders.contents(storage), `the memory of ${storage}`);
    const asked = cluster.link.asked.length;
    const again = await make(b);
    assert.deepEqual([again.status, again.json.host, cluster.link.asked.length], [201, "b", asked], "it is there");
    await b.service.settled();

    assert.equal((await b.call("DELETE", "/v1/snapshots/tools")).status, 204);
    assert.deepEqual([storages(b), await cluster.named()], [[storage], [storage]], "capsules stand on it");
    for (const id of [json.id, again.json.id]) assert.equal((await b.call("DELETE", `/v1/capsules/${id}`)).status, 204);
    await b.service.settled();
    assert.deepEqual([storages(b), b.service.templateRows.all()], [[], []]);
    assert.deepEqual(await cluster.named(), [storage], "a capsule of the other host stands on it");
    await cluster.database.sql.call("delete_capsule", [near.json.id, 1, "a"], about);
    assert.deepEqual(await cluster.named(), []);
  });

  test("a capture fails while the bucket is away: its capsule runs on, and nothing is left", async () => {
    await using cluster = await hosts("a");
    const { link, database } = cluster;
    const [{ host: a }] = cluster.all as [(typeof cluster.all)[0]];
    link.rule = ({ method }) => (method === "PUT" ? { status: 403 } : undefined);
    const id = await created(a);
    const capture = () => a.call("POST", "/v1/snapshots", { sandbox_id: id, name: "tools" });
    const refused = await capture();
    assert.deepEqual([refused.status, refused.json.error.code], [503, "unavailable"]);
    assert.equal((await a.call("GET", `/v1/capsules/${id}`)).json.status, "running");
    assert.equal(a.machine.guests.get(id)?.isStopped, false);
    assert.deepEqual([storages(a), await cluster.named(), a.service.templateRows.all()], [[], [], []]);
    assert.deepEqual((await a.call("GET", "/v1/snapshots?type=snapshot")).json, []);

    // The files are there, and PostgreSQL refuses the template.
    link.rule = () => undefined;
    await database.sql.query(`UPDATE cluster SET limits = limits || '{"templates_max": 0}'`, [], about);
    const beyond = await capture();
    assert.deepEqual([beyond.status, beyond.json.error.code], [429, "quota_exceeded"]);
    assert.deepEqual([storages(a), await cluster.named()], [[], []]);
    await database.sql.query(`UPDATE cluster SET limits = limits || '{"templates_max": 9}'`, [], about);
    assert.equal((await capture()).status, 201);
    assert.equal((await cluster.named()).length, 1);
  });

  test("a bucket that refuses everything is a reason alone: the host is ready and makes capsules", async () => {
    await using cluster = await hosts("a");
    const { link } = cluster;
    const [{ host: a }] = cluster.all as [(typeof cluster.all)[0]];
    const health = async () => {
      const { status, json } = await a.call("GET", "/healthz");
      return [status, json.ready, json.creates, json.reasons.map((each: string) => each.split(":")[0])];
    };
    assert.deepEqual(await health(), [200, true, true, []]);
    link.rule = () => ({ status: 403 });
    const capture = { sandbox_id: await created(a), name: "tools" };
    assert.equal((await a.call("POST", "/v1/snapshots", capture)).status, 503);
    assert.deepEqual(await health(), [200, true, true, ["the cluster's bucket is away"]]);
    await created(a);
    link.rule = () => undefined;
    assert.equal((await a.call("POST", "/v1/snapshots", capture)).status, 201);
    assert.deepEqual(await health(), [200, true, true, []]);
  });

  test("a DELETE ends the capture whose files are on their way", async () => {
    await using cluster = await hosts("a");
    const { link } = cluster;
    const [{ host: a }] = cluster.all as [(typeof cluster.all)[0]];
    link.rule = ({ method }) => (method === "PUT" ? { isHeld: true } : undefined);
    const id = await created(a);
    const capture = a.call("POST", "/v1/snapshots", { sandbox_id: id, name: "tools" });
    await waitFor("the first object to be sent", () => link.asked.some(({ method }) => method === "PUT"));
    assert.equal((await a.call("DELETE", `/v1/capsules/${id}`)).status, 204);
    const { status, json } = await capture;
    assert.deepEqual([status, json.error.code], [404, "not_found"]);
    assert.deepEqual([storages(a), await cluster.named()], [[], []]);
  });

  test("one that was replaced or deleted elsewhere a moment ago is the new one, or none, on a host that has fetched the old one", async () => {
    await using cluster = await hosts("a", "b");
    const [{ host: a }, { host: b, folders }] = cluster.all as [(typeof cluster.all)[0], (typeof cluster.all)[0]];
    const first = await captured(a);
    using held = await b.cluster.templateFiles!.ensure("team-red", "tools");
    assert.deepEqual(storages(b), [first]);
    held[Symbol.dispose]();
    const second = await captured(a, "?overwrite=true");
    const { status, json } = await make(b);
    assert.deepEqual([status, json.host], [201, "b"], "it has the files, as far as it knows");
    await b.service.settled();
    assert.equal(b.service.store.get(json.id)?.storage, second);
    assert.equal(folders.contents(second), `the memory of ${second}`);
    assert.equal((await a.call("DELETE", "/v1/snapshots/tools")).status, 204);
    assert.equal((await make(b)).json.error.code, "not_found");
    await b.second();
    await b.service.settled();
    assert.deepEqual(storages(b), [second], "the old one is gone, and a capsule stands on the other one");
    assert.equal((await b.call("DELETE", `/v1/capsules/${json.id}`)).status, 204);
    await b.service.settled();
    assert.deepEqual([storages(b), await cluster.named()], [[], []]);
  });

  test("a host that cannot use it leaves the create to another one; what does not verify is 502, what is not there 503", async () => {
    await using cluster = await hosts("a", "b", "c");
    const { database, all } = cluster;
    const [{ host: a }, { host: b, folders }, { host: c, folders: ofC }] = all as [
      (typeof all)[0],
      (typeof all)[0],
      (typeof all)[0],
    ];
    await captured(a);
    await a.kill();
    for (let passed = 0; passed < 13; passed++) for (const each of [b, c]) await each.second();
    folders.isOtherMachine = true;
    const elsewhere = await make(b);
    assert.deepEqual([elsewhere.status, elsewhere.json.host], [201, "c"], JSON.stringify(elsewhere.json));
    ofC.isOtherMachine = true;
    const nowhere = await make(b);
    assert.deepEqual([nowhere.status, nowhere.json.error.code], [409, "conflict"]);
    for (const each of [folders, ofC]) each.isOtherMachine = false;
    // Host b forgets its files, and fetches them anew.
    for (const { storage } of b.service.templateRows.all()) {
      b.service.templateRows.remove(storage, 1);
      b.machine.templates.delete(storage);
    }
    folders.damage = "its memory has other bytes";
    const damaged = await b.services.capsules
      .create("team-red", { template: "tools", vcpus: 1, memoryMb: 512, timeoutSec: 0 })
      .catch((error: unknown) => error as { code: string; message: string });
    assert.ok("code" in damaged);
    assert.deepEqual([damaged.code, damaged.message], ["agent_error", "its memory has other bytes"]);
    folders.damage = undefined;
    await database.sql.query("DELETE FROM artifacts", [], about);
    ofC.isOtherMachine = true;
    const missing = await make(b);
    const { code, details } = missing.json.error;
    assert.deepEqual([missing.status, code, details], [503, "unavailable", { host: "a" }]);
    assert.deepEqual(storages(b), []);
  });
});
