/** Creates at any host: where the capsule is made, what it costs, and what a repeat gets. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CapsuleError } from "../../src/wire/errors.ts";
import { addTeams, created, type FakeHostOfCluster, hostOfCluster } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const path = "/v1/capsules";

async function threeHosts() {
  const database = await clusterDatabase(server);
  await addTeams(database);
  const hosts = await Promise.all(["a", "b", "c"].map((name) => hostOfCluster(database, name)));
  const [a, b, c] = hosts as [FakeHostOfCluster, FakeHostOfCluster, FakeHostOfCluster];
  for (const host of hosts) await host.second(); // each sees what the others have, and their peer ports
  return {
    ...{ database, a, b, c, hosts },
    async [Symbol.asyncDispose]() {
      for (const each of [...hosts, database]) await each[Symbol.asyncDispose]();
    },
  };
}

async function captured(host: FakeHostOfCluster, name: string): Promise<void> {
  const { status } = await host.call("POST", "/v1/snapshots", { sandbox_id: await created(host), name });
  assert.equal(status, 201);
  await host.service.settled();
}

function refuse(host: FakeHostOfCluster, code: "no_capacity" | "agent_error" = "no_capacity"): { asked: number } {
  const counted = { asked: 0 };
  host.machine.admitStart = async () => {
    counted.asked += 1;
    throw new CapsuleError(code, `host ${host.name} is full`);
  };
  return counted;
}

const auditOf = async (host: FakeHostOfCluster) =>
  (await host.call("GET", "/v1/audit?limit=100")).json.entries
    .filter((each: { action: string }) => each.action === "capsule.create")
    .map(({ status, subject }: { status: number; subject: string }) => [status, subject]);

test("a capsule of a template is made on the host that has it, by one transaction", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  await captured(a, "tools");
  // b has not heard of it, and looks; c knows it from the catalog.
  const body = { template: "tools", name: "web", odd: 1 };
  const first = await b.call("POST", `${path}?wait=running`, body);
  assert.deepEqual([first.status, first.json.host, first.json.status], [201, "a", "running"]);
  assert.equal(first.headers["x-ignored-fields"], "odd");
  await c.second();
  await a.copied();
  const before = [a, c].map(({ sql }) => sql.statements);
  assert.equal((await c.call("POST", path, { template: "tools" })).json.host, "a");
  const after = [a, c].map(({ sql }) => sql.statements);
  assert.deepEqual([after[0]! - before[0]!, after[1]! - before[1]!], [1, 0]);
  assert.equal((await b.call("POST", path, { template: "tools", name: "web" })).json.error.code, "name_taken");
  assert.equal((await b.call("POST", path, { template: "tools", vcpus: "x" })).json.error.code, "invalid_request");
  const refused = await b.call("POST", path, { template: "nothing" });
  assert.deepEqual([refused.status, refused.json.error.code], [404, "not_found"]);
  for (const host of cluster.hosts) await host.second();
  const made = (await auditOf(c)).filter(([, subject]: [number, string]) => subject === "tools");
  assert.deepEqual(made.slice(0, 2), [
    [201, "tools"],
    [201, "tools"],
  ]);
});

test("a template that was replaced on another host is used there, and a deleted one is 404", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  await captured(a, "tools");
  await b.second();
  const id = await created(c);
  const replaced = await c.call("POST", "/v1/snapshots?overwrite=true", { sandbox_id: id, name: "tools" });
  assert.equal(replaced.status, 201);
  for (const host of [a, b]) await host.second();
  for (const host of [a, b, c]) assert.equal((await host.call("POST", path, { template: "tools" })).json.host, "c");
  assert.equal((await a.call("DELETE", "/v1/snapshots/tools")).status, 204);
  for (const host of [a, b, c]) await host.second();
  for (const host of [a, b, c]) assert.equal((await host.call("POST", path, { template: "tools" })).status, 404);
});

test("a template that another host has replaced a moment ago is used there", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  const create = (host: FakeHostOfCluster, name: string) => host.call("POST", path, { template: name });
  const names = ["early", "half", "full"];
  const ids = new Map<string, string>();
  for (const name of names) {
    await captured(a, name);
    ids.set(name, await created(c));
  }
  const replace = async (name: string) => {
    const body = { sandbox_id: ids.get(name), name };
    assert.equal((await c.call("POST", "/v1/snapshots?overwrite=true", body)).status, 201);
  };
  for (const host of cluster.hosts) await host.second();
  for (const name of ["early", "half"]) await replace(name);
  // No host has heard of the new one: the entry looks once, and has it in mind then.
  for (const host of [b, a]) {
    const before = host.sql.statements;
    const { status, json } = await create(host, "early");
    assert.deepEqual([status, json.host], [201, "c"], host.name);
    assert.ok(host.sql.statements > before);
  }
  const known = b.sql.statements;
  assert.equal((await create(b, "early")).json.host, "c");
  assert.equal(b.sql.statements, known);
  // The former one's host has heard of it, and the entry has not.
  await a.second();
  const half = await create(b, "half");
  assert.deepEqual([half.status, half.json.host], [201, "c"]);
  await replace("full");
  const full = refuse(c);
  for (const host of [a, b]) {
    const { status, json } = await create(host, "full");
    assert.deepEqual([status, json.error.code], [503, "no_capacity"], host.name);
  }
  assert.equal(full.asked, 2);
  for (const host of [c, a]) await host.service.settled();
  await c.second(); // its entries of the audit log are written
  const made = (await auditOf(a)).filter(([, subject]: [number, string]) => subject === "early");
  assert.equal(made.length, 3);
});

test("a host without room is left out, and all of them are 503", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  const full = refuse(b);
  const elsewhere = await b.call("POST", path, { name: "web" });
  assert.deepEqual([elsewhere.status, full.asked], [201, 1]);
  assert.ok(["a", "c"].includes(elsewhere.json.host));
  const broken = refuse(a, "agent_error");
  const third = await b.call("POST", path);
  assert.deepEqual([third.status, third.json.host, full.asked], [201, "c", 2]);
  const [last, asked] = [refuse(c), broken.asked];
  const none = await b.call("POST", path);
  assert.deepEqual([none.status, none.json.error.code], [503, "no_capacity"]);
  assert.deepEqual([full.asked, broken.asked, last.asked], [3, asked + 1, 1]);
  assert.ok(Number(none.headers["retry-after"]) > 0);
  for (const host of cluster.hosts) await host.second();
  assert.deepEqual((await auditOf(b)).map(([status]: [number]) => status).sort(), [201, 201, 503]);
});

test("a host that is emptier is chosen, and makes it itself whatever it knows of others", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b } = cluster;
  const [mib, gib] = [2 ** 20, 2 ** 30];
  for (const host of cluster.hosts) Object.assign(host.machine.memory, { spareBytes: () => 100 * mib });
  Object.assign(a.machine.memory, { spareBytes: () => 8 * gib });
  for (const host of cluster.hosts) await host.second();
  await b.second();
  Object.assign(a.machine.memory, { spareBytes: () => mib }); // b has not heard of it
  const { status, json } = await b.call("POST", path);
  assert.deepEqual([status, json.host], [201, "a"]);
});

test("a template on a host that is away is 503 with that host's name", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b } = cluster;
  await captured(a, "tools");
  await b.second();
  await a.kill();
  for (let passed = 0; passed < 13; passed++) await b.second();
  const { status, json } = await b.call("POST", path, { template: "tools" });
  assert.deepEqual([status, json.error.code, json.error.details], [503, "unavailable", { host: "a" }]);
});

test("a repeat of a create gets the first answer at any host, wherever the capsule is", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  await captured(a, "tools");
  const header = { "idempotency-key": "one" };
  const first = await b.call("POST", path, { template: "tools" }, header);
  assert.deepEqual([first.status, first.json.host], [201, "a"]);
  await a.service.settled();
  await a.copied();
  assert.equal((await b.call("DELETE", "/v1/snapshots/tools")).status, 204);
  for (const host of [a, b, c]) {
    const { status, json, headers } = await host.call("POST", path, { template: "tools" }, header);
    assert.deepEqual([status, json, headers["idempotent-replayed"]], [201, first.json, "true"], host.name);
  }
  const other = await c.call("POST", path, { template: "tools", name: "x" }, header);
  assert.deepEqual([other.status, other.json.error.code], [409, "conflict"]);
});

test("a repeat is answered by the host of a create that is not copied yet", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c } = cluster;
  const held = Promise.withResolvers<void>();
  a.machine.moment = () => held.promise;
  const header = { "idempotency-key": "one" };
  const first = await a.call("POST", path, {}, header);
  assert.equal(first.json.status, "starting");
  for (const host of [b, c]) {
    const { status, json, headers } = await host.call("POST", path, {}, header);
    assert.deepEqual([status, json, headers["idempotent-replayed"]], [201, first.json, "true"], host.name);
  }
  held.resolve();
  await a.service.settled();
});

test("no repeat gets the answer of a create that its host undoes", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b, c, database } = cluster;
  const header = { "idempotency-key": "one" };
  const create = a.cluster.decided.create;
  a.cluster.decided.create = async (...of) => {
    await create.apply(a.cluster.decided, of);
    throw new CapsuleError("unavailable", "the answer is lost");
  };
  assert.equal((await a.call("POST", path, { name: "web" }, header)).status, 503);
  a.cluster.decided.create = create;
  // The database has the capsule and its answer; its host does not.
  assert.equal((await database.sql.query("SELECT id FROM capsules", [], about)).length, 1);
  for (const host of [a, b, c]) {
    const { status, json } = await host.call("POST", path, { name: "web" }, header);
    assert.deepEqual([status, json.error.code], [503, "unavailable"], host.name);
  }
  a.clock.advance(60_000);
  await a.cluster.settled();
  assert.deepEqual(await database.sql.query("SELECT id FROM capsules", [], about), []);
  const again = await b.call("POST", path, { name: "web" }, header);
  assert.deepEqual([again.status, again.headers["idempotent-replayed"]], [201, undefined]);
});

test("a repeat of a capture gets the first answer at any host", { skip }, async () => {
  await using cluster = await threeHosts();
  const { a, b } = cluster;
  const body = { sandbox_id: await created(a, { name: "web" }), name: "tools" };
  const header = { "idempotency-key": "one" };
  const first = await b.call("POST", "/v1/snapshots", body, header);
  assert.deepEqual([first.status, first.headers["idempotent-replayed"]], [201, undefined]);
  await a.service.settled();
  for (const host of cluster.hosts) {
    const { status, json, headers } = await host.call("POST", "/v1/snapshots", body, header);
    assert.deepEqual([status, json, headers["idempotent-replayed"]], [201, first.json, "true"], host.name);
  }
  const other = await b.call("POST", "/v1/snapshots", { ...body, name: "others" }, header);
  assert.deepEqual([other.status, other.json.error.code], [409, "conflict"]);
  assert.equal((await b.call("POST", "/v1/snapshots", body)).status, 404);
});
