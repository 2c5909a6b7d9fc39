/** Paused capsules that rest are uploaded and leave their host: what it does, and what it does not do when something comes first. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { ClusterStep } from "../../src/cluster/copies.ts";
import { decodeReleased } from "../../src/cluster/released.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { FakeUploads } from "../fakes/fake-uploads.ts";
import { waitFor, within } from "../wait-for.ts";
import {
  addTeams,
  created,
  type FakeHostOfCluster,
  type HostOptions,
  hostOfCluster,
  releaseAfterMs,
} from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

interface Releasing extends FakeHostOfCluster {
  uploads: FakeUploads;
  holding: HoldingRows;
}

async function world(): Promise<ClusterDatabase & { host: (options?: HostOptions) => Promise<Releasing> }> {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const hosts: FakeHostOfCluster[] = [];
  const host = async (options: HostOptions = {}): Promise<Releasing> => {
    const machine = options.machine ?? new FakeHost();
    const uploads = new FakeUploads(machine);
    const made = await hostOfCluster(database, "a", { uploads, ...options, machine });
    hosts.push(made);
    return Object.assign(made, { uploads, holding: new HoldingRows(made.database) });
  };
  const dispose = async () => {
    for (const each of hosts) await each[Symbol.asyncDispose]();
    await database[Symbol.asyncDispose]();
  };
  return { ...database, host, [Symbol.asyncDispose]: dispose };
}

async function paused(host: Releasing, body: object = {}): Promise<string> {
  const id = await created(host, body);
  await pause(host, id);
  return id;
}

async function pause(host: Releasing, id: string): Promise<void> {
  assert.equal((await host.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await host.service.settled();
}

const left = (host: Releasing, id: string) =>
  waitFor(`${id} to leave`, () => host.service.store.get(id) === undefined && host.holding.uploads(9).length === 0);
const uploading = (host: Releasing, id: string) => waitFor(`${id} to be uploaded`, () => host.uploads.underWay.has(id));

async function rowOf({ sql }: ClusterDatabase, id: string) {
  const [found] = await sql.query<{ row: Record<string, unknown> }>(
    "SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1",
    [id],
    about,
  );
  return found?.row;
}

async function garbage({ sql }: ClusterDatabase): Promise<string[]> {
  return (await sql.query<{ prefix: string }>("SELECT prefix FROM garbage", [], about)).map(({ prefix }) => prefix);
}

/** An upload that goes on until it is let go, whatever the signal says. */
function stuck(uploads: FakeUploads): { letGo: () => void; signals: AbortSignal[] } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const signals: AbortSignal[] = [];
  uploads.moment = (_id, signal) => {
    signals.push(signal);
    return promise;
  };
  return { letGo: resolve, signals };
}

/** A daemon that ends at a step: nothing is done behind it. */
function endingAt(step: string): { step: ClusterStep; isReached: (times?: number) => boolean } {
  let count = 0;
  return {
    isReached: (times = 1) => count >= times,
    step(name) {
      if (name !== step) return;
      count += 1;
      throw new Error(`the daemon has ended at ${step}`);
    },
  };
}

/** Capsules are due now, and no heartbeat comes with it, behind which what had no answer is asked again. */
async function rest(host: Releasing): Promise<void> {
  host.clock.advance(releaseAfterMs - 1);
  await host.cluster.settled();
  host.clock.advance(1);
}

test("a capsule that has rested for 5 s leaves its host with all that it has of it", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host, { name: "web", labels: { a: "b" }, envs: { KEY: "value" } });
  const kept = host.holding.kept(id)!;
  await host.copied();
  host.clock.advance(releaseAfterMs - 1);
  assert.deepEqual(host.uploads.begun, []);
  await host.cluster.settled();
  const { statements } = host.sql;
  host.clock.advance(1);
  await left(host, id);
  assert.equal(host.sql.statements - statements, 1);
  const released = decodeReleased(await rowOf(cluster, id));
  assert.deepEqual([released.host, released.epoch, released.lastHost], [null, 1, "a"]);
  assert.deepEqual([released.row.name, released.row.labels, released.row.status], ["web", '{"a":"b"}', "paused"]);
  assert.ok(kept.envs !== null);
  assert.deepEqual(Buffer.from(released.kept.envs!), Buffer.from(kept.envs));
  const { prefix, savedRevision, revision } = released.checkpoint;
  assert.equal(host.uploads.checkpoints.get(prefix)?.revision, savedRevision);
  assert.equal(revision, released.row.revision);
  assert.deepEqual([...host.machine.aside.keys()], [`${id}.1.${savedRevision}`]);
  assert.ok(!host.machine.folders.has(id) && !host.service.store.wasDestroyed(id));
  assert.deepEqual([host.service.store.counts().paused, host.service.store.leaving.size], [0, 0]);
  await host.cluster.copies.flush();
  assert.deepEqual((await host.service.reconciler.reconcile()).length, 0);
  const { json } = await host.call("GET", "/v1/capsules");
  assert.deepEqual(
    json.map((each: { id: string; status: string; host: unknown }) => [each.id, each.status, each.host]),
    [[id, "paused", null]],
  );
  assert.deepEqual(await garbage(cluster), []);
});

test("a host whose cluster has no bucket releases nothing", { skip }, async () => {
  await using cluster = await world();
  const host = await hostOfCluster(cluster, "a");
  await using _host = host;
  const id = await created(host);
  await host.call("POST", `/v1/capsules/${id}/pause`);
  await host.service.settled();
  await host.copied();
  const { statements } = host.sql;
  host.clock.advance(releaseAfterMs * 10);
  await host.cluster.settled();
  assert.equal(host.service.store.get(id)?.status, "paused");
  assert.ok(host.sql.statements > statements, "heartbeats go on");
  assert.equal((await rowOf(cluster, id))?.host, "a");
});

test("a resume ends the upload and waits for nothing of it; what was written becomes garbage", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host);
  const { letGo, signals } = stuck(host.uploads);
  host.clock.advance(releaseAfterMs);
  await uploading(host, id);
  const { status } = await within("the resume", host.call("POST", `/v1/capsules/${id}/resume`));
  assert.deepEqual([status, signals[0]?.aborted, host.uploads.underWay.has(id)], [200, true, true]);
  const [prefix] = host.holding.uploads(9);
  host.clock.advance(60_000); // a sweep, while the upload still writes
  await host.cluster.settled();
  assert.deepEqual(host.holding.uploads(9), [prefix]);
  letGo();
  await waitFor("the upload to end", () => !host.uploads.underWay.has(id));
  await waitFor("the prefix to be garbage", async () => {
    host.clock.advance(60_000);
    return (await garbage(cluster)).length === 1 && host.holding.uploads(9).length === 0;
  });
  assert.deepEqual(await garbage(cluster), [prefix]);
  assert.equal(host.service.store.get(id)?.status, "running");
});

test("a capsule that was resumed and paused again is not released with the checkpoint of before", {
  skip,
}, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host);
  const { letGo } = stuck(host.uploads);
  host.clock.advance(releaseAfterMs);
  await uploading(host, id);
  await host.call("POST", `/v1/capsules/${id}/resume`);
  await pause(host, id);
  host.uploads.moment = () => Promise.resolve();
  letGo();
  await waitFor("the second upload", () => {
    host.clock.advance(releaseAfterMs);
    return host.service.store.get(id) === undefined;
  });
  const { checkpoint } = decodeReleased(await rowOf(cluster, id));
  assert.equal(host.uploads.checkpoints.get(checkpoint.prefix)?.revision, checkpoint.savedRevision);
  assert.deepEqual([...host.machine.aside.keys()], [`${id}.1.${checkpoint.savedRevision}`]);
});

test("labels that are changed during the upload are those of the released row", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host);
  const { letGo } = stuck(host.uploads);
  host.clock.advance(releaseAfterMs);
  await uploading(host, id);
  assert.equal((await host.call("PATCH", `/v1/capsules/${id}`, { labels: { of: "late" } })).status, 200);
  letGo();
  await left(host, id);
  assert.equal((await rowOf(cluster, id))?.labels, '{"of":"late"}');
});

test("four capsules are uploaded at a time, and each of them once", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const ids: string[] = [];
  for (let count = 0; count < 6; count++) ids.push(await paused(host));
  const { letGo } = stuck(host.uploads);
  host.clock.advance(releaseAfterMs);
  await waitFor("four uploads", () => host.uploads.underWay.size === 4);
  host.clock.advance(releaseAfterMs);
  assert.equal(host.uploads.underWay.size, 4);
  host.uploads.moment = () => Promise.resolve();
  letGo();
  for (const id of ids) await left(host, id);
  assert.deepEqual([...host.uploads.begun].sort(), [...ids].sort());
});

test("a capsule without hashes, and every one while the bucket is away, is released later", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host);
  host.uploads.hasHashes = false;
  host.clock.advance(releaseAfterMs);
  host.uploads.hasHashes = true;
  host.uploads.isAway = true;
  await waitFor("an upload that fails", () => {
    host.clock.advance(1_000);
    return host.uploads.begun.length > 1;
  });
  assert.equal(host.service.store.get(id)?.status, "paused");
  host.uploads.isAway = false;
  await waitFor("the capsule to leave", () => {
    host.clock.advance(10_000);
    return host.service.store.get(id) === undefined;
  });
});

for (const step of ["releasing", "released"]) {
  test(`a daemon that ended at ${step} runs the capsule no more, and finishes the release`, { skip }, async () => {
    await using cluster = await world();
    const fault = endingAt(step);
    const first = await cluster.host({ step: fault.step });
    const id = await paused(first);
    await rest(first);
    await waitFor("the step", () => fault.isReached());
    await first.kill();
    const { database, machine } = first;
    const releasing = first.holding.releasing(id);
    assert.ok(releasing !== null);
    assert.equal((await rowOf(cluster, id))?.host, step === "releasing" ? "a" : null);

    const second = await cluster.host({ database, machine, leavingMs: 1 });
    const answers = [
      await second.call("POST", `/v1/capsules/${id}/resume`),
      await second.call("PATCH", `/v1/capsules/${id}`, { labels: { x: "y" } }),
      await second.call("POST", `/v1/capsules/${id}/exec`, { command: "true" }),
      await second.call("DELETE", `/v1/capsules/${id}`),
      await second.call("GET", `/v1/capsules/${id}`),
    ];
    assert.deepEqual(
      answers.map(({ status }) => status),
      [503, 503, 503, 503, 503],
    );
    assert.throws(() => second.service.store.require("team-red", id), { code: "unavailable" });
    assert.equal(second.holding.releasing(id), releasing);
    assert.equal(second.machine.guests.size, 0);
    await second.second();
    await left(second, id);
    const released = decodeReleased(await rowOf(cluster, id));
    assert.deepEqual([released.host, released.epoch], [null, 1]);
    assert.equal(second.machine.aside.size, 1);
    assert.equal(second.cluster.report().contradictions, 0);
  });
}

test("a release that was answered while its daemon was gone leaves the next holder alone", { skip }, async () => {
  await using cluster = await world();
  const fault = endingAt("released");
  const first = await cluster.host({ step: fault.step });
  const ids = [await paused(first), await paused(first), await paused(first)];
  await rest(first);
  await waitFor("all releases to have an answer", () => fault.isReached(3));
  await first.kill();
  const [acquired, destroyed, captured] = ids as [string, string, string];
  await cluster.sql.call("acquire_capsule", [acquired, 1, "b", 1, null, 9], about);
  for (const id of [destroyed, captured]) await cluster.sql.call("delete_capsule", [id, 1, null], about);
  await cluster.sql.query("UPDATE tombstones SET captured_as = 't1' WHERE id = $1", [captured], about);
  const { database, machine } = first;
  const second = await cluster.host({ database, machine });
  await second.second();
  await waitFor("all rows to go", async () => {
    await second.second();
    return second.service.store.all().length === 0;
  });
  const row = await rowOf(cluster, acquired);
  assert.deepEqual([row?.host, row?.epoch], ["b", 2]);
  assert.deepEqual(
    ids.map((id) => second.service.store.wasDestroyed(id)),
    [false, true, true],
  );
  assert.deepEqual([machine.folders.size, machine.aside.size, second.service.store.leaving.size], [0, 1, 0]);
  assert.equal(second.cluster.report().contradictions, 0);
});

test("a capsule whose last change a power cut has undone here is released all the same", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host();
  const id = await paused(host);
  await host.copied();
  await cluster.sql.query("UPDATE capsules SET revision = revision + 5 WHERE id = $1", [id], about);
  await waitFor("the capsule to leave", () => {
    host.clock.advance(10_000);
    return host.service.store.get(id) === undefined;
  });
  assert.equal((await rowOf(cluster, id))?.host, null);
  assert.equal(host.uploads.begun.length, 2);
});

test("a request waits for the answer to a release that is under way", { skip }, async () => {
  await using cluster = await world();
  const host = await cluster.host({ leavingMs: 60_000 });
  const id = await paused(host);
  const aside = Promise.withResolvers<void>();
  const { setAside } = host.machine.moved;
  const isAside = Promise.withResolvers<void>();
  host.machine.moved.setAside = async (...of) => {
    isAside.resolve();
    await aside.promise;
    await setAside(...of);
  };
  host.clock.advance(releaseAfterMs);
  await isAside.promise;
  const asked = host.call("GET", `/v1/capsules/${id}`);
  const first = await Promise.race([
    asked.then(() => "answered"),
    new Promise((resolve) => setImmediate(resolve, "waits")),
  ]);
  assert.equal(first, "waits");
  aside.resolve();
  const { status } = await within("the answer", asked);
  assert.notEqual(status, 404);
  assert.equal(host.service.store.get(id), undefined);
});

test("an upload that its daemon did not end is garbage at the next start", { skip }, async () => {
  await using cluster = await world();
  const first = await cluster.host();
  const id = await paused(first);
  stuck(first.uploads);
  first.clock.advance(releaseAfterMs);
  await uploading(first, id);
  const [prefix] = first.holding.uploads(9);
  await first.kill();
  const { database, machine } = first;
  const second = await cluster.host({ database, machine });
  await waitFor("the prefix to be garbage", async () => (await garbage(cluster)).length > 0);
  assert.deepEqual(await garbage(cluster), [prefix]);
  second.clock.advance(releaseAfterMs);
  await left(second, id);
});
