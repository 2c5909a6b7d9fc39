/** Streams of events that go from one host to another one: nothing is left out, and nothing told twice. */
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { keys } from "../api.ts";
import { EventStream, type ServerEvent } from "../event-stream.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const [a, b] = [await hostOfCluster(database, "a"), await hostOfCluster(database, "b")];
  for (const { app } of [a, b]) await app.listen({ host: "127.0.0.1", port: 0 });
  return {
    ...{ database, a, b },
    async [Symbol.asyncDispose]() {
      for (const each of [a, b, database]) await each[Symbol.asyncDispose]();
    },
  };
}

function streamOf(host: FakeHostOfCluster, lastId?: string, key = keys.red): Promise<EventStream> {
  const { port } = host.app.server.address() as AddressInfo;
  return EventStream.open({ url: `http://127.0.0.1:${port}`, key }, lastId);
}

function shown({ name, data }: ServerEvent): string {
  return [name, data.id ?? data.name, data.status, data.host].filter((each) => each !== undefined).join(" ");
}

/** The events up to the one that is shown as `last`. */
async function until(stream: EventStream, last: string): Promise<string[]> {
  const told: string[] = [];
  while (told.at(-1) !== last) told.push(shown((await stream.next())!));
  return told;
}

async function paused(host: FakeHostOfCluster, id: string): Promise<void> {
  assert.equal((await host.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await host.copied();
}

test("a client goes on at the other host where it was, with the changes of both, once each", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const [first, second] = [await created(a), await created(b)];
  const atA = await streamOf(a);
  assert.equal(shown((await atA.next())!), "reset");
  await paused(b, second);
  assert.deepEqual(await until(atA, `capsule ${second} paused b`), [`capsule ${second} paused b`]);
  const { lastId } = atA;
  await atA[Symbol.asyncDispose]();
  await paused(a, first);
  const third = await created(b);
  const atB = await streamOf(b, lastId);
  assert.deepEqual(await until(atB, `capsule ${third} running b`), [
    `capsule ${first} paused a`,
    `capsule ${third} running b`,
  ]);
  assert.equal((await b.call("DELETE", `/v1/capsules/${second}`)).status, 204);
  assert.deepEqual(await until(atB, `capsule-removed ${second}`), [`capsule-removed ${second}`]);
  const source = await created(a);
  await until(atB, `capsule ${source} running a`);
  assert.equal((await a.call("POST", "/v1/snapshots", { sandbox_id: source, name: "tools" })).status, 201);
  assert.deepEqual(await until(atB, "template tools"), [`capsule-removed ${source}`, "template tools"]);
  const last = atB.lastId;
  await atB[Symbol.asyncDispose]();
  assert.equal((await b.call("DELETE", "/v1/snapshots/tools")).status, 204);
  await using again = await streamOf(a, last);
  assert.deepEqual(await until(again, "template-removed tools"), ["template-removed tools"]);
});

test("changes of one version have an order that all hosts share", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const ids = [await created(a), await created(a), await created(a)].sort();
  const atA = await streamOf(a);
  await atA.next();
  for (const id of ids) assert.equal((await a.call("POST", `/v1/capsules/${id}/pause`)).status, 200);
  await a.copied(); // one statement
  const expected = ids.map((id) => `capsule ${id} paused a`);
  const told: ServerEvent[] = [];
  for (const _ of ids) told.push((await atA.next())!);
  assert.deepEqual(told.map(shown), expected);
  await atA[Symbol.asyncDispose]();
  const marker = await created(b);
  for (const [at, { id }] of told.entries()) {
    await using atB = await streamOf(b, id);
    assert.deepEqual(
      (await until(atB, `capsule ${marker} running b`)).filter((each) => !each.includes(marker)),
      expected.slice(at + 1),
    );
  }
});

test("what changes nothing that is shown makes no event", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a);
  await using atB = await streamOf(b);
  await atB.next();
  a.cluster.copies.markAll(); // as after an outage
  await a.copied();
  const marker = await created(b);
  const told = await until(atB, `capsule ${marker} running b`);
  assert.deepEqual(
    told.filter((each) => !each.includes(marker)),
    [],
  );
  await paused(a, id);
  assert.deepEqual(await until(atB, `capsule ${id} paused a`), [`capsule ${id} paused a`]);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
  await a.copied();
  assert.deepEqual(await until(atB, `capsule ${id} running a`), [`capsule ${id} running a`]);
});

test("more changes than a page are told whole, and far more are a reset, as an id that is none", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const { sql } = database;
  const destroyed = async (count: number) => {
    const [team] = await sql.query<{ version: number }>(
      "UPDATE teams SET version = version + $1 WHERE id = 'team-red' RETURNING version",
      [count],
      about,
    );
    await sql.query(
      `INSERT INTO tombstones (id, team_id, version, epoch, at)
       SELECT format('cl-%s-%s', $1::bigint, lpad(n::text, 4, '0')), 'team-red', $1::bigint - $2::bigint + n, 1, 1
       FROM generate_series(1, $2::bigint) n`,
      [team!.version, count],
      about,
    );
    return team!.version;
  };
  const first = await streamOf(a);
  await first.next();
  const { lastId } = first;
  await first[Symbol.asyncDispose]();
  const version = await destroyed(230);
  await using stream = await streamOf(b, lastId);
  const told = await until(stream, `capsule-removed cl-${version}-0230`);
  const expected = Array.from(
    { length: 230 },
    (_, n) => `capsule-removed cl-${version}-${String(n + 1).padStart(4, "0")}`,
  );
  assert.deepEqual(told, expected);
  await destroyed(230);
  const at = String((await destroyed(1)) + 1);
  for (const id of [lastId, "5f0c2a91-41", "x", at, "1.c:\u00e9", `${"9".repeat(15)}`]) {
    await using again = await streamOf(a, id);
    const event = (await again.next())!;
    assert.deepEqual([event.name, event.data], ["reset", { reason: "missed" }], id);
    assert.equal(event.id, String(Number(at) - 1));
  }
});

test("a row that no host has written is a reset to its team, and other teams are told all the same", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const key = { "x-api-key": keys.blue };
  const red = await created(a);
  const blue = (await a.call("POST", "/v1/capsules", {}, key)).json.id as string;
  await a.service.settled();
  await a.copied();
  const told: string[] = [];
  b.cluster.changes.onChange((teamId, _id, { kind }) => void told.push(`${teamId} ${kind}`));
  await using streams = new AsyncDisposableStack();
  for (const each of [keys.red, keys.blue]) await streams.use(await streamOf(b, undefined, each)).next();
  /** As of one statement, in the next version of each team. */
  const changed = (wrong: string, columns: string) =>
    database.sql.query(
      `WITH up AS (UPDATE teams SET version = version + 1 RETURNING id, version),
         one AS (UPDATE capsules c SET ${columns}, version = up.version FROM up WHERE c.id = $1 AND up.id = c.team_id)
       UPDATE capsules c SET name = $3, version = up.version FROM up WHERE c.id = $2 AND up.id = c.team_id`,
      [wrong, wrong === red ? blue : red, `after-${told.length}`],
      about,
    );
  for (const [wrong, team, other] of [
    [red, "team-red", "team-blue"],
    [blue, "team-blue", "team-red"],
  ] as const) {
    told.length = 0;
    await changed(wrong, "started_at = 9000000000000000");
    await b.cluster.changes.poll();
    assert.deepEqual(told.toSorted(), [`${team} reset`, `${other} capsule`].toSorted());
    await changed(wrong, "started_at = 1, labels = '{'");
    await b.cluster.changes.poll();
    assert.deepEqual(told.slice(2).toSorted(), [`${team} capsule`, `${other} capsule`].toSorted());
  }
  for (const labels of ["{", "[]", '{"a":1}']) {
    await database.sql.query("UPDATE capsules SET labels = $1 WHERE id = $2", [labels, red], about);
    for (const url of ["/v1/capsules", "/v1/capsules?label=a=1"]) {
      const { status, json } = await b.call("GET", url);
      assert.deepEqual(
        [status, json.map((each: { labels: object }) => each.labels)],
        [200, url.endsWith("1") ? [] : [{}]],
      );
    }
  }
});
