/** Two hosts that answer as one, and what each still does while the database is away. */
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { hostSummaries } from "../../src/cluster/host-list.ts";
import { keys } from "../api.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { addTeams, created, hostOfCluster } from "./fake-hosts.ts";
import { Link } from "./link.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

async function twoHosts(limits = {}) {
  const database = await clusterDatabase(server, limits);
  await addTeams(database);
  const [linkA, linkB] = [await Link.to(server), await Link.to(server)];
  const a = await hostOfCluster(database, "a", { link: linkA });
  const b = await hostOfCluster(database, "b", { link: linkB });
  return {
    ...{ database, a, b, linkA, linkB },
    async [Symbol.asyncDispose]() {
      for (const each of [linkA, linkB]) each.open();
      for (const each of [a, b, linkA, linkB, database]) await each[Symbol.asyncDispose]();
    },
  };
}

const idsOf = (json: { id: string }[]) => json.map(({ id }) => id);

test("a host shows the machine of its VMs, and another one when that changes", { skip }, async () => {
  await using database = await clusterDatabase(server);
  const machine = new FakeHost();
  machine.described = { accelerator: "tcg", qemu: "10.0.2", devices: ["ports:1"] };
  await using a = await hostOfCluster(database, "a", { machine });
  const shown = async () => (await hostSummaries(database.sql)).find(({ name }) => name === "a")?.machine;
  assert.deepEqual(await shown(), machine.described);
  await a.second();
  const statements = async () => {
    const before = a.sql.statements;
    await a.second();
    return a.sql.statements - before;
  };
  const idle = await statements();
  machine.described = { ...machine.described, qemu: "10.1.0" };
  assert.deepEqual([await statements(), await statements()], [idle + 1, idle]);
  assert.deepEqual(await shown(), machine.described);
});

test("both hosts list the capsules of both, newest first and in pages, with their holders", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const made = [await created(a, { name: "one" }), await created(b), await created(a, { labels: { k: "v" } })];
  for (const host of [a, b]) {
    const { json } = await host.call("GET", "/v1/capsules");
    assert.deepEqual(idsOf(json), made.toReversed());
    assert.deepEqual(
      json.map((each: { host: string; status: string }) => [each.host, each.status]),
      [
        ["a", "running"],
        ["b", "running"],
        ["a", "running"],
      ],
    );
    const first = await host.call("GET", "/v1/capsules?limit=2");
    const rest = await (host === a ? b : a).call(
      "GET",
      `/v1/capsules?limit=2&cursor=${first.headers["x-next-cursor"]}`,
    );
    assert.deepEqual([...idsOf(first.json), ...idsOf(rest.json)], made.toReversed());
    assert.deepEqual(idsOf((await host.call("GET", "/v1/capsules?label=k=v")).json), [made[2]]);
    assert.deepEqual(idsOf((await host.call("GET", "/v1/capsules?name=one&status=running")).json), [made[0]]);
    assert.equal((await host.call("GET", "/v1/limits")).json.usage.capsules, 3);
  }
  assert.equal((await a.call("GET", `/v1/capsules/${made[0]}`)).json.host, "a");
  assert.deepEqual(await b.cluster.locations.find("team-red", made[0]!), { at: "host", host: "a" });
  assert.deepEqual(await b.cluster.locations.find("team-red", "one"), { at: "host", host: "a" });
  assert.deepEqual(await b.cluster.locations.find("team-blue", made[0]!), { at: "nowhere" });
  assert.deepEqual(await b.cluster.locations.find("team-red", made[1]!), { at: "here" });
});

test("quotas and names hold over both hosts, and a change is shown on the other one", { skip }, async () => {
  await using cluster = await twoHosts({ capsules_max: 3, running_vcpus_max: 2 });
  const { a, b } = cluster;
  const first = await created(a, { name: "web" });
  assert.equal((await b.call("POST", "/v1/capsules", { name: "web" })).json.error.code, "name_taken");
  const second = await created(b);
  assert.equal((await b.call("POST", "/v1/capsules")).json.error.code, "quota_exceeded");
  await a.call("POST", `/v1/capsules/${first}/pause`);
  await a.copied();
  const third = await created(b);
  const refused = await a.call("POST", `/v1/capsules/${first}/resume`);
  assert.deepEqual([refused.status, refused.json.error.code], [429, "quota_exceeded"]);
  await b.call("POST", `/v1/capsules/${second}/pause`);
  await b.copied();
  assert.equal((await a.call("POST", `/v1/capsules/${first}/resume`)).status, 200);
  await a.copied();
  const { json } = await b.call("GET", "/v1/capsules");
  assert.deepEqual(
    json.map((each: { status: string }) => each.status),
    ["running", "paused", "running"],
  );
  assert.equal((await b.call("PATCH", `/v1/capsules/${third}`, { name: "web" })).json.error.code, "name_taken");
  assert.equal((await a.call("PATCH", `/v1/capsules/${first}`, { name: "api", labels: { k: "v" } })).status, 200);
  assert.equal((await b.call("PATCH", `/v1/capsules/${third}`, { name: "web" })).status, 200);
  await a.copied();
  const listed = (await b.call("GET", "/v1/capsules?label=k=v")).json[0];
  assert.deepEqual([listed.id, listed.name], [first, "api"]);
  assert.equal((await a.call("DELETE", `/v1/capsules/${first}`)).status, 204);
  assert.deepEqual(idsOf((await b.call("GET", "/v1/capsules")).json), [third, second]);
  assert.equal((await b.call("POST", "/v1/capsules")).status, 201);
  assert.equal((await b.call("POST", "/v1/capsules")).json.error.code, "quota_exceeded");
});

test("keys are made and revoked for both hosts, and the audit log is that of both", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const made = await a.call("POST", "/v1/keys", { name: "ci" });
  const key = { "x-api-key": made.json.key };
  assert.equal((await a.call("GET", "/v1/session", undefined, key)).status, 200);
  await b.second();
  assert.equal((await b.call("GET", "/v1/session", undefined, key)).json.key_id, made.json.id);
  assert.equal((await b.call("DELETE", `/v1/keys/${made.json.id}`)).status, 204);
  assert.equal((await b.call("GET", "/v1/session", undefined, key)).status, 401);
  await a.second();
  assert.equal((await a.call("GET", "/v1/session", undefined, key)).status, 401);
  const actions = async (host: typeof a) =>
    (await host.call("GET", "/v1/audit?limit=2")).json.entries.map((each: { action: string }) => each.action);
  await a.second();
  assert.deepEqual(await actions(b), ["key.revoke", "key.create"]);
  assert.deepEqual(await actions(a), ["key.revoke", "key.create"]);
  const page = (await a.call("GET", "/v1/audit?limit=1")).json;
  const next = (await b.call("GET", `/v1/audit?limit=1&before=${page.next}`)).json;
  assert.deepEqual(
    [page, next].map(({ entries }) => entries[0].action),
    ["key.revoke", "key.create"],
  );
});

test("a repeat of a create at the other host gets the first answer, another body a conflict", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const header = { "idempotency-key": "one" };
  const first = await a.call("POST", "/v1/capsules", { name: "web" }, header);
  const again = await b.call("POST", "/v1/capsules", { name: "web" }, header);
  assert.deepEqual([again.status, again.json, again.headers["idempotent-replayed"]], [201, first.json, "true"]);
  const other = await b.call("POST", "/v1/capsules", { name: "api" }, header);
  assert.deepEqual([other.status, other.json.error.code], [409, "conflict"]);
  const both = await Promise.all(
    [a, b].map((host) => host.call("POST", "/v1/capsules", { name: "two" }, { "idempotency-key": "two" })),
  );
  assert.ok(both.some(({ status }) => status === 201));
  for (const { status } of both) assert.ok([201, 503].includes(status), String(status));
  await a.service.settled();
  assert.equal((await a.call("GET", "/v1/capsules?name=two")).json.length, 1);
});

test("a template is the cluster's, used where it was made, and deleted at any host", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const source = await created(a);
  assert.equal((await a.call("POST", "/v1/snapshots", { sandbox_id: source, name: "tools" })).status, 201);
  const names = async (host: typeof a) =>
    (await host.call("GET", "/v1/snapshots?type=snapshot")).json.map((each: { name: string }) => each.name);
  assert.deepEqual([await names(a), await names(b)], [["tools"], ["tools"]]);
  assert.deepEqual(idsOf((await b.call("GET", "/v1/capsules")).json), []);
  const there = await b.call("POST", "/v1/capsules", { template: "tools" });
  assert.deepEqual([there.status, there.json.host], [201, "a"]);
  assert.equal((await b.call("DELETE", `/v1/capsules/${there.json.id}`)).status, 204);
  const paused = await created(a, { template: "tools" });
  await a.call("POST", `/v1/capsules/${paused}/pause`);
  await a.copied();
  const other = await created(b);
  assert.equal(
    (await b.call("POST", "/v1/snapshots", { sandbox_id: other, name: "tools" })).json.error.code,
    "template_name_taken",
  );
  assert.equal((await b.call("GET", `/v1/capsules/${other}`)).json.status, "running");
  assert.equal((await b.call("DELETE", "/v1/snapshots/tools")).status, 204);
  assert.deepEqual([await names(a), await names(b)], [[], []]);
  assert.equal((await a.call("POST", "/v1/capsules", { template: "tools" })).json.error.code, "not_found");
  assert.equal((await a.call("POST", `/v1/capsules/${paused}/resume`)).json.error.code, "conflict");
  await a.second();
  assert.equal((await a.call("POST", "/v1/capsules", { template: "tools" })).json.error.code, "not_found");
});

test("without the database what runs goes on, nothing is made or destroyed, and all is settled when it is back", {
  skip,
}, async () => {
  await using cluster = await twoHosts();
  const { a, b, linkA, database } = cluster;
  const [held, paused, kept] = [await created(a, { name: "web" }), await created(a), await created(a)];
  await a.call("POST", `/v1/capsules/${paused}/pause`);
  await a.copied();
  linkA.cut();
  for (let passed = 0; passed < 9; passed++) await a.second();
  assert.deepEqual(
    [(await a.call("GET", "/healthz")).status, (await a.call("GET", "/healthz")).json.creates],
    [200, false],
  );
  assert.match((await a.call("GET", "/healthz")).json.reasons.join(), /database is away/);
  const refused = await Promise.all([
    a.call("POST", "/v1/capsules"),
    a.call("DELETE", `/v1/capsules/${kept}`),
    a.call("PATCH", `/v1/capsules/${held}`, { name: "api" }),
    a.call("POST", "/v1/keys", { name: "ci" }),
    a.call("GET", "/v1/capsules"),
    a.call("GET", "/v1/audit"),
    a.call("POST", "/v1/snapshots", { sandbox_id: kept, name: "tools" }),
  ]);
  for (const { status, json, headers } of refused) {
    assert.deepEqual([status, json.error.code], [503, "unavailable"]);
    assert.ok(Number(headers["retry-after"]) > 0);
  }
  assert.equal((await a.call("GET", `/v1/capsules/${held}`)).json.status, "running");
  assert.equal((await a.call("POST", `/v1/capsules/${paused}/resume`)).status, 200);
  assert.equal((await a.call("POST", `/v1/capsules/${held}/pause`)).status, 200);
  assert.equal((await a.call("PATCH", `/v1/capsules/${held}`, { labels: { k: "v" } })).status, 200);
  assert.equal((await b.call("GET", "/healthz")).json.creates, true);
  linkA.open();
  await a.second();
  await a.copied();
  const { json } = await b.call("GET", "/v1/capsules");
  assert.deepEqual(
    json.map((each: { id: string; status: string; name: string; labels: object }) => [
      each.id,
      each.status,
      each.name,
      each.labels,
    ]),
    [
      [kept, "running", null, {}],
      [paused, "running", null, {}],
      [held, "paused", "web", { k: "v" }],
    ],
  );
  assert.equal((await a.call("DELETE", `/v1/capsules/${kept}`)).status, 204);
  const rows = await database.sql.query("SELECT id FROM capsules", [], about);
  assert.equal(rows.length, 2);
});

test("a host that is back compares all, though a comparison from before has not ended", { skip }, async (t) => {
  await using cluster = await twoHosts();
  const { a, linkA, database } = cluster;
  const id = await created(a, { name: "old" });
  await a.second(); // the first comparison after a start
  const held = Promise.withResolvers<void>();
  t.mock.method(a.cluster.audit, "try", () => held.promise);
  const { membership } = a.cluster;
  const passes = async () => {
    a.clock.advance(1_000);
    await membership.settled();
  };
  await passes();
  linkA.cut();
  for (let passed = 0; passed < 9; passed++) await passes();
  assert.equal(membership.isExpired, true);
  await database.sql.query("UPDATE capsules SET name = 'new' WHERE id = $1", [id], about);
  linkA.open();
  await passes();
  assert.equal(membership.isExpired, false);
  held.resolve();
  await a.cluster.settled();
  await a.second();
  assert.equal(a.service.store.get(id)?.name, "new");
});

test("a host that is isolated for 900 s accepts no key any longer", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, linkA } = cluster;
  linkA.cut();
  a.clock.advance(899_000);
  assert.equal((await a.call("GET", "/v1/session")).status, 200);
  a.clock.advance(2_000);
  const refused = await a.call("GET", "/v1/session");
  assert.deepEqual([refused.status, refused.json.error.code], [503, "unavailable"]);
});

test("a daemon that starts without the database accepts keys for the rest of their time", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, database, linkA } = cluster;
  let readAt = Number.NEGATIVE_INFINITY;
  const note = () => {
    readAt = -890_000;
  };
  const freshness = { ageMs: () => 0 - readAt, note };
  const life = { database: a.database, machine: a.machine, freshness, link: linkA };
  await a.kill();
  const second = await hostOfCluster(database, "a", life);
  await second.kill();
  assert.equal(readAt, -890_000, "it was noted");
  linkA.cut();
  await using third = await hostOfCluster(database, "a", { ...life, epoch: 3 });
  assert.equal((await third.call("GET", "/v1/session")).status, 200);
  third.clock.advance(9_000);
  assert.equal((await third.call("GET", "/v1/session")).status, 200);
  third.clock.advance(2_000);
  assert.equal((await third.call("GET", "/v1/session")).status, 503);
});

test("a time that cannot be kept for the next start ends nothing", { skip }, async () => {
  await using cluster = await twoHosts();
  let notes = 0;
  const note = () => {
    notes++;
    throw new Error("no space left on device");
  };
  await using c = await hostOfCluster(cluster.database, "c", { freshness: { ageMs: () => 0, note } });
  c.clock.advance(20_000);
  await c.cluster.settled();
  assert.ok(notes > 1, "it is tried again");
  assert.equal((await c.call("GET", "/v1/session")).status, 200);
});

test("an answer that was lost is settled by what the database knows", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const [destroyed, renamed] = [await created(a), await created(a, { name: "old" })];
  const row = a.service.store.get(destroyed)!;
  await a.cluster.decided.destroy(row); // the host has not heard of it
  await a.cluster.decided.rename(a.service.store.get(renamed)!, "new");
  const lost = {
    ...row,
    id: "cl-lost",
    status: "starting" as const,
    intent: "create" as const,
    name: null,
    revision: 0,
  };
  await a.cluster.decided.create(lost, () => undefined);
  await new Promise(setImmediate);
  a.clock.advance(60_000);
  await a.cluster.settled();
  await a.service.settled();
  assert.equal(a.service.store.get(destroyed), undefined);
  assert.equal(a.machine.guests.has(destroyed), false);
  assert.equal(a.service.store.get(renamed)?.name, "new");
  const rows = await database.sql.query<{ id: string }>("SELECT id FROM capsules", [], about);
  assert.deepEqual(rows, [{ id: renamed }]);
  assert.deepEqual(idsOf((await b.call("GET", "/v1/capsules")).json), [renamed]);
});

test("a daemon that was killed goes on with its capsules, and copies what it had not", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b, database } = cluster;
  const id = await created(a);
  await a.service.capsules.pause("team-red", id);
  await a.kill();
  await using next = await hostOfCluster(database, "a", { database: a.database, machine: a.machine });
  await next.copied();
  assert.equal((await b.call("GET", "/v1/capsules")).json[0].status, "paused");
  assert.equal((await next.call("POST", `/v1/capsules/${id}/resume`)).status, 200);
});

test("a host that holds nothing answers for the capsules of the other one", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a, b } = cluster;
  const id = await created(a, { name: "web" });
  await b.second();
  await a.app.listen({ host: "127.0.0.1", port: 0 });
  await b.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = b.app.server.address() as AddressInfo;
  const ask = async (method: string, path: string, json?: object) => {
    const headers = { "x-api-key": keys.red, ...(json === undefined ? {} : { "content-type": "application/json" }) };
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      ...{ method, headers },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
    });
    const text = await response.text();
    return { status: response.status, json: text === "" ? undefined : JSON.parse(text) };
  };
  assert.deepEqual((await ask("GET", `/v1/capsules/${id}`)).json.host, "a");
  assert.equal((await ask("GET", "/v1/capsules/web")).json.id, id);
  assert.equal((await ask("PATCH", "/v1/capsules/web", { labels: { k: "v" } })).json.labels.k, "v");
  assert.equal((await ask("POST", `/v1/capsules/${id}/pause`)).json.status, "paused");
  const statements = b.sql.statements;
  assert.equal((await ask("POST", `/v1/capsules/${id}/resume`)).json.status, "running");
  assert.equal(b.sql.statements, statements, "the map knows it");
  assert.equal((await ask("DELETE", `/v1/capsules/${id}`)).status, 204);
  const gone = await ask("GET", `/v1/capsules/${id}`);
  assert.deepEqual([gone.status, gone.json.error.code], [404, "not_found"]);
});

test("on the holder commands send no statement", { skip }, async () => {
  await using cluster = await twoHosts();
  const { a } = cluster;
  const id = await created(a);
  await a.second(); // the first comparison after a start
  await a.copied();
  const { statements } = a.sql;
  for (const path of [`/v1/capsules/${id}`, "/v1/session"]) assert.equal((await a.call("GET", path)).status, 200);
  assert.equal((await a.call("POST", `/v1/capsules/${id}/ping`)).status, 204);
  assert.equal(a.sql.statements, statements);
  await a.second();
  assert.equal(a.sql.statements, statements + 1, "an idle host sends one statement a second");
});
