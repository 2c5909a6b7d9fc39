/** Which hosts count as expired: by the time of one host alone, and in the operator's list by PostgreSQL's. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { drainHost, hostSummaries } from "../../src/cluster/host-list.ts";
import { Membership } from "../../src/cluster/membership.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { FakeClock } from "../fakes/fake-clock.ts";
import { waitFor } from "../wait-for.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase, joining, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const silent = { info() {}, warn() {}, error() {} };

/** A host whose heartbeats are sent when its clock is advanced. */
async function hostOf(name: string, url: string) {
  const clock = new FakeClock();
  const sql = await Postgres.open({ url, ...patient });
  const seen = { beats: 0, backs: 0, refusals: [] as string[] };
  const counted = { asked: 0 };
  const membership = new Membership({
    ...{ sql, clock, log: silent, me: { name, epoch: 1, nonce: `nonce-${name}` } },
    load: () => {
      counted.asked += 1;
      return {};
    },
    onBeat: ({ isBack }) => {
      seen.beats += 1;
      if (isBack) seen.backs += 1;
    },
    onRefused: (reason) => seen.refusals.push(reason),
  });
  await membership.start();
  return {
    ...{ membership, seen },
    /** Lets a second pass, and the heartbeat that it brings be answered, or fail. */
    async second() {
      const { asked } = counted;
      clock.advance(1_000);
      await waitFor("a heartbeat", () => counted.asked > asked);
      await membership.settled();
    },
    async [Symbol.asyncDispose]() {
      await membership.stop();
      await sql.close();
    },
  };
}

test("a host that does not move for 12 s has expired, and no other one while the database is away", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using a = await hostOf("a", database.url);
  await using b = await hostOf("b", database.url);
  const expired = () =>
    a.membership
      .hosts()
      .filter(({ isExpired }) => isExpired)
      .map(({ name }) => name);
  for (let passed = 0; passed < 11; passed++) await Promise.all([a.second(), b.second()]);
  assert.equal(a.membership.alive("b")?.name, "b");
  for (let passed = 0; passed < 2; passed++) await a.second();
  assert.deepEqual(expired(), ["c"]); // which never sent one
  for (let passed = 0; passed < 11; passed++) await a.second();
  assert.deepEqual(expired(), ["b", "c"]);
  assert.equal(a.membership.alive("b"), undefined);
  await b.second();
  await a.second();
  assert.deepEqual(expired(), ["c"]);

  await server.stop();
  for (let passed = 0; passed < 7; passed++) await a.second();
  assert.equal(a.membership.isExpired, false);
  for (let passed = 0; passed < 8; passed++) await a.second();
  assert.equal(a.membership.isExpired, true);
  assert.deepEqual(expired(), []);
  assert.equal(a.seen.backs, 1);
  await server.resume();
  await a.second();
  assert.equal(a.seen.backs, 2);
  assert.deepEqual([a.membership.isExpired, expired()], [false, []]); // the time of each begins anew
  for (let passed = 0; passed < 12; passed++) await a.second();
  assert.deepEqual(expired(), ["b", "c"]);
});

test("a host is absent from its first heartbeat until its port is open, and from its stop on until it has expired", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using a = await hostOf("a", database.url);
  await using b = await hostOf("b", database.url);
  const isAbsent = async () => {
    await a.second();
    return a.membership.isAbsent("b");
  };
  assert.deepEqual([await isAbsent(), a.membership.isAbsent("unknown")], [true, false]);
  b.membership.serves();
  await b.second();
  assert.equal(await isAbsent(), false);
  await b.membership.servesNoLonger(); // by a heartbeat of its own
  assert.equal(await isAbsent(), true);
  for (let passed = 0; passed < 11; passed++) assert.equal(await isAbsent(), true);
  assert.equal(await isAbsent(), false);
  assert.equal(a.membership.alive("b"), undefined);
  await b.membership.stop();
  const { beats } = b.seen;
  await b.membership.servesNoLonger();
  assert.equal(b.seen.beats, beats);
  const load = '{"memory_mb":1}'; // of an earlier program
  await database.sql.call("heartbeat", ["b", 1, "nonce-b", load], about);
  assert.equal(await isAbsent(), false);
  assert.notEqual(a.membership.alive("b"), undefined);
});

test("a daemon whose name another one has joined under is told so once, and expires", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await using a = await hostOf("a", database.url);
  assert.deepEqual(a.seen.refusals, []);
  await database.sql.call("join_host", joining("a"), about);
  await a.second();
  assert.match(a.seen.refusals.join(), /another daemon has joined as host a/);
  for (let passed = 0; passed < 8; passed++) await a.second();
  await a.membership.servesNoLonger(); // as its stop does
  assert.equal(a.seen.refusals.length, 1);
  assert.equal(a.membership.isExpired, true);
});

test("the operator's list has the time since each host's last heartbeat, and expired from 12 s on", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const { sql } = database;
  await using a = await hostOf("a", database.url);
  const listed = async (name: string) => {
    const { state, last_seen_sec } = (await hostSummaries(sql)).find((each) => each.name === name)!;
    return { state, sec: last_seen_sec };
  };
  /** As if the host had been silent since then. */
  const silence = (sec: number) =>
    sql.query("UPDATE hosts SET seen_at = now_ms() - $1::bigint * 1000 WHERE name = 'a'", [sec], about);
  assert.equal((await listed("a")).state, "up");
  await sql.query("UPDATE hosts SET seen_at = NULL WHERE name = 'b'", [], about);
  assert.equal((await listed("b")).state, "expired", "none was seen of it yet");
  await silence(12);
  const { state, sec } = await listed("a");
  assert.equal(state, "expired");
  assert.ok(sec >= 12 && sec < 300, `${sec} s`);
  await drainHost(sql, "a");
  await silence(100);
  assert.equal((await listed("a")).state, "draining");
  assert.ok((await listed("a")).sec >= 100);
  await silence(-100); // the database's clock was set back
  assert.equal((await listed("a")).sec, 0);
  await silence(1_000);
  await a.second();
  assert.ok((await listed("a")).sec < 300, "a heartbeat was sent");
});
