/** How data folders become hosts of a cluster, and which are refused: each in one sentence, and untouched. */

import assert from "node:assert/strict";
import { execFile, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { type ClusterFile, newClusterFile, readClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { readHostFile } from "../../src/cluster/host-file.ts";
import { type Holdings, joinCluster } from "../../src/cluster/joining.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { CapsuleRows } from "../../src/db/capsule-rows.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { TeamRows } from "../../src/db/team-rows.ts";
import { SecretKey, secretKeyName } from "../../src/secret.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { waitFor } from "../wait-for.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, patient } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const work = mkdtempSync(join(tmpdir(), "capsule-joining-"));
after(() => rmSync(work, { recursive: true }));
const program = resolve(import.meta.dirname, "../../capsule");

const nothing: Holdings = { capsules: 0, teams: [], keys: [], templates: [] };

function folder(): string {
  return mkdtempSync(join(work, "data-"));
}

function capsule(dataDir: string, words: string[], more: Record<string, string> = {}, input = "") {
  const environment = { PATH: process.env.PATH ?? "", CAPSULE_DATA: dataDir, CAPSULE_PORT: "0", ...more };
  return spawnSync(program, words, { encoding: "utf8", env: environment, input });
}

/** A data folder with a team and two capsules. */
function filled(): string {
  const dataDir = folder();
  const database = openDatabase(databasePath(dataDir));
  new TeamRows(database).ensure({ id: "team-blue", name: "blue", createdAt: 1 });
  const rows = new CapsuleRows(database);
  for (const id of ["cl-old", "cl-new"])
    rows.insert(capsuleRow(id, { status: "paused", intent: null, name: `n-${id}` }));
  database.close();
  SecretKey.ofFolder(dataDir);
  return dataDir;
}

/** A cluster of such a folder. */
function founded(): { dataDir: string; path: string; file: ClusterFile; url: string } {
  const [dataDir, url] = [filled(), server.newDatabase()];
  const { status, stdout, stderr } = capsule(dataDir, ["admin", "cluster", "init", "--postgres", url]);
  assert.equal(status, 0, stderr);
  return { dataDir, path: stdout.trim(), file: readClusterFile(stdout.trim()), url };
}

async function joining(dataDir: string, file: ClusterFile, name: string | undefined, holdings = nothing, port = 8_079) {
  const sql = await Postgres.open({ url: file.postgres, ...patient });
  const said: string[] = [];
  const note = (_about: object, message: string) => said.push(message);
  try {
    const { me, limits } = await joinCluster({
      ...{ sql, file, dataDir, name, machineName: "machine", version: "0.0.0", holdings: () => holdings },
      ...{ peer: { address: undefined, port }, log: { info: note, warn: note, error: note } },
    });
    return { me, limits, said };
  } finally {
    await sql.close();
  }
}

test("init makes a cluster of what its folder has, once, and the folder then joins under its name", {
  skip,
}, async () => {
  const { dataDir, path, file, url } = founded();
  assert.equal(file.valuesKey.toString("hex"), readFileSync(join(dataDir, secretKeyName), "latin1").trim());
  const sql = await Postgres.open({ url, ...patient });
  const rows = await sql.query<{ id: string; host: string }>("SELECT id, host FROM capsules ORDER BY seq", [], about);
  assert.deepEqual(
    rows,
    ["cl-old", "cl-new"].map((id) => ({ id, host: hostname() })),
  );
  await sql.close();
  const { me, limits } = await joining(dataDir, file, undefined);
  assert.deepEqual([me.name, me.epoch], [hostname(), 2]);
  assert.ok(limits.capsules_max! > 0);
  const again = capsule(dataDir, ["admin", "cluster", "init", "--postgres", url, "--file", `${path}.2`]);
  assert.match(again.stderr, /has joined a cluster as host/);
  assert.equal(existsSync(`${path}.2`), false);
  const other = capsule(folder(), ["admin", "cluster", "init", "--postgres", url]);
  assert.match(other.stderr, /the database has the tables of a cluster already/);
  const check = capsule(dataDir, ["admin", "cluster", "check"], { CAPSULE_CLUSTER: path });
  assert.match(check.stdout, /^cluster [0-9a-f]{16}, schema [0-9]+: the file and the database fit together\n$/);
  const keys = (words: string[], more = { CAPSULE_CLUSTER: path }) =>
    capsule(dataDir, ["admin", "keys", ...words], more);
  const key = keys(["create", "--team", "red", "--name", "ci"]);
  assert.match(key.stdout, /^capk_/, key.stderr);
  assert.match(keys(["create", "--team", "red"], {} as never).stderr, /belongs to a cluster: set CAPSULE_CLUSTER/);
  assert.match(capsule(dataDir, ["serve"]).stderr, /belongs to a cluster: set CAPSULE_CLUSTER/);
  const read = await Postgres.open({ url, ...patient });
  const made = await read.query<{ id: string; revoked: boolean }>(
    "SELECT id, revoked_at IS NOT NULL AS revoked FROM keys",
    [],
    about,
  );
  assert.deepEqual(
    made.map(({ revoked }) => revoked),
    [false],
  );
  assert.equal(keys(["revoke", made[0]!.id]).stdout, `${made[0]!.id}\n`);
  const ended = await read.query("SELECT id FROM keys WHERE revoked_at IS NOT NULL", [], about);
  assert.equal(ended.length, 1);
  await read.query("UPDATE hosts SET seen_at = now_ms() - 12000", [], about); // it was seen when it joined
  await read.close();
  const hosts = capsule(dataDir, ["admin", "hosts", "--json"], { CAPSULE_CLUSTER: path });
  assert.deepEqual(
    JSON.parse(hosts.stdout).map(({ name, state, held, backlog }: Record<string, unknown>) => [
      name,
      state,
      held,
      backlog,
    ]),
    [[hostname(), "expired", 2, 2]],
    hosts.stderr,
  );
});

test("init takes the password of PostgreSQL from standard input, and from no command line", { skip }, () => {
  const [dataDir, url] = [folder(), server.newDatabase()];
  const init = (given: string, input = "") =>
    capsule(dataDir, ["admin", "cluster", "init", "--postgres", given], {}, input);
  for (const given of [url.replace("capsule@", "capsule:hunter2@"), `${url}&password=hunter2`]) {
    const { status, stderr } = init(given);
    assert.equal(status, 2);
    assert.match(stderr, /leave it out of the URL; it is asked for, or is a line on standard input/);
    assert.doesNotMatch(stderr, /hunter2/);
  }
  assert.deepEqual(readdirSync(dataDir), []);
  const made = init(url, "h@n%hunter /2\r\nmore\n");
  assert.equal(made.status, 0, made.stderr);
  const { postgres } = readClusterFile(made.stdout.trim());
  assert.equal(decodeURIComponent(new URL(postgres).password), "h@n%hunter /2");
  assert.doesNotMatch(made.stdout + made.stderr, /hunter/);
  assert.equal(init(url).status, 0, "a repeat asks for nothing");
});

/** Standard input stays open. */
function asking(dataDir: string, url: string, path: string) {
  const environment = { PATH: process.env.PATH ?? "", CAPSULE_DATA: dataDir, CAPSULE_HOST_NAME: "one" };
  const words = ["admin", "cluster", "init", "--postgres", url, "--file", path];
  const child = spawn(program, words, { env: environment, timeout: 120_000 });
  const said = { stderr: "" };
  child.stderr.setEncoding("utf8").on("data", (part: string) => {
    said.stderr += part;
  });
  return { child, said, closed: once(child, "close") as Promise<[code: number | null]> };
}

test("init names host, data folder and file before it asks for anything, and makes the file's folder", {
  skip,
}, async () => {
  const dataDir = filled();
  const path = join(folder(), "etc", "capsule", "cluster.json");
  const { child, said, closed } = asking(dataDir, server.newDatabase(), path);
  const taken = [`host one`, `data folder ${dataDir}, with capsules: 2, teams: 1`, `cluster file ${path}`];
  const lines = taken.map((line) => `capsule: ${line}\n`).join("");
  await waitFor("all is named", () => said.stderr === lines || child.exitCode !== null);
  assert.equal(said.stderr, lines);
  assert.equal(statSync(dirname(path)).mode & 0o777, 0o700);
  assert.deepEqual(readdirSync(dirname(path)), [], "the trial has left nothing");
  child.stdin.end("\n");
  assert.deepEqual(await closed, [0, null], said.stderr);
  assert.deepEqual(readdirSync(dirname(path)), ["cluster.json"]);
});

test("init says that the file cannot be written before it asks for anything", { skip }, async () => {
  const dataDir = filled();
  for (const path of [join(databasePath(dataDir), "capsule", "cluster.json"), "/proc/cluster.json"]) {
    const { said, closed } = asking(dataDir, server.newDatabase(), path);
    assert.deepEqual(await closed, [1, null], said.stderr);
    assert.match(
      said.stderr,
      /^capsule admin cluster init: the cluster's file cannot be written: [^\n]+\n[^\n]*Name another one by --file\.\n$/,
    );
  }
});

test("an init that was ended midway is finished by the same command", { skip }, async () => {
  const again = (dataDir: string, url: string, path: string) =>
    capsule(dataDir, ["admin", "cluster", "init", "--postgres", url, "--file", path]);
  const done = founded();
  const before = readHostFile(done.dataDir)!;
  const bytes = readFileSync(done.path);
  // Behind the database's commit.
  rmSync(join(done.dataDir, "host.json"));
  const finished = again(done.dataDir, done.url, done.path);
  assert.deepEqual([finished.status, finished.stdout], [0, `${done.path}\n`], finished.stderr);
  assert.deepEqual(readHostFile(done.dataDir), before);
  assert.deepEqual(again(done.dataDir, done.url, done.path).status, 0, "nothing is left to do");
  assert.deepEqual(readFileSync(done.path), bytes);
  assert.equal((await joining(done.dataDir, done.file, undefined)).me.epoch, 2);
  // Before it, with a part of a file that another command has left.
  const [dataDir, url] = [folder(), server.newDatabase()];
  SecretKey.ofFolder(dataDir);
  const key = Buffer.from(readFileSync(join(dataDir, secretKeyName), "latin1").trim(), "hex");
  const path = join(dataDir, "cluster.json");
  writeFileSync(`${path}.new`, "{");
  const file = newClusterFile(url, key);
  writeClusterFile(path, file);
  const made = again(dataDir, url, path);
  assert.equal(made.status, 0, made.stderr);
  assert.deepEqual(readClusterFile(path), file);
  assert.equal((await joining(dataDir, file, undefined)).me.epoch, 2);
  // Files of another folder, database or cluster.
  const other = folder();
  cpSync(path, join(other, "cluster.json"));
  assert.match(again(other, url, join(other, "cluster.json")).stderr, /exists already/);
  assert.match(again(folder(), server.newDatabase(), path).stderr, /exists already/);
  const unreached = join(folder(), "cluster.json");
  assert.equal(again(folder(), "postgres://x@127.0.0.1:9/x", unreached).status, 1);
  assert.equal(existsSync(unreached), false);
});

test("a limit of the cluster is set by its name, within its bounds", { skip }, async () => {
  const { dataDir, path, url } = founded();
  const set = (assignment: string) =>
    capsule(dataDir, ["admin", "cluster", "set", assignment], { CAPSULE_CLUSTER: path });
  const refused = ["capsule_max=5", "capsules_max=0", "capsules_max", "vcpus_max=4"].map(set);
  assert.deepEqual(
    refused.map(({ status }) => status),
    [2, 2, 2, 2],
  );
  assert.match(refused[0]!.stderr, /"capsule_max" is no limit; capsules_max/);
  assert.match(refused[1]!.stderr, /capsules_max must be a whole number from 1/);
  assert.match(refused[3]!.stderr, /CAPSULE_VCPUS_MAX of a host/);
  assert.equal(set("capsules_max=5").status, 0);
  const sql = await Postgres.open({ url, ...patient });
  const [row] = await sql.query<{ limits: { capsules_max: number }; catalog: number }>(
    "SELECT limits, catalog FROM cluster",
    [],
    about,
  );
  await sql.close();
  assert.deepEqual([row!.limits.capsules_max, row!.catalog], [5, 2]);
});

test("a folder joins under a new name with epoch 1, then with the next ones, without the database with its last", {
  skip,
}, async () => {
  const { file } = founded();
  const dataDir = folder();
  assert.deepEqual((await joining(dataDir, file, "two")).me.epoch, 1);
  assert.deepEqual((await joining(dataDir, file, undefined)).me, {
    ...(await joining(dataDir, file, "two")).me,
    epoch: 2,
  });
  await server.stop();
  const alone = await joining(dataDir, file, "two").finally(() => server.resume());
  assert.equal(alone.me.epoch, 3);
  assert.match(alone.said.join(), /database is away/);
  assert.ok(alone.limits.capsules_max! > 0);
});

test("a folder that was moved starts once the cluster was told, and the place it had is refused then", {
  skip,
}, async () => {
  const { path, file } = founded();
  const [before, now] = [folder(), folder()];
  await joining(before, file, "two");
  cpSync(before, now, { recursive: true });
  const moved = (name: string) => capsule(now, ["admin", "hosts", "moved", name], { CAPSULE_CLUSTER: path });
  await assert.rejects(joining(now, file, "two"), /hosts moved two$/);
  assert.match(moved("three").stderr, /the cluster has no host three/);
  assert.equal(moved("two").status, 0);
  assert.equal((await joining(now, file, "two")).me.epoch, 2);
  await assert.rejects(joining(before, file, "two"), /is a copy, or was moved/);
});

test("a folder does not count as moved while its host is up", { skip }, async () => {
  const { path, file, url } = founded();
  const dataDir = folder();
  await joining(dataDir, file, "two");
  const sql = await Postgres.open({ url, ...patient });
  await using _closed = { [Symbol.asyncDispose]: () => sql.close() };
  const env = { PATH: process.env.PATH ?? "", CAPSULE_CLUSTER: path };
  let said: string | undefined;
  const asked = promisify(execFile)(program, ["admin", "hosts", "moved", "two"], { env });
  asked.then(
    () => (said = "it counts as moved"),
    ({ stderr }: { stderr: string }) => (said = stderr),
  );
  await waitFor("an answer", async () => {
    await sql.query("UPDATE hosts SET heartbeat = heartbeat + 1", [], about);
    return said;
  });
  assert.match(said!, /host two is up\n +Stop its server first/);
});

test("what cannot join is refused in one sentence that says what to do, and is not touched", { skip }, async () => {
  const { file } = founded();
  const two = folder();
  await joining(two, file, "two");
  const refusal = async (...[dataDir, of, name, holdings, port]: Parameters<typeof joining>) => {
    const before = readdirSync(dataDir).map((each) => [each, readFileSync(join(dataDir, each), "latin1")]);
    const { message } = await joining(dataDir, of, name, holdings, port).then(
      () => assert.fail("it has joined"),
      (error: Error) => error,
    );
    assert.deepEqual(
      readdirSync(dataDir).map((each) => [each, readFileSync(join(dataDir, each), "latin1")]),
      before,
    );
    assert.ok(!message.includes("\n"), message);
    return message;
  };
  assert.match(
    await refusal(folder(), file, "two"),
    /another data folder has joined as host two: set another CAPSULE_HOST_NAME/,
  );
  const copy = folder();
  cpSync(two, copy, { recursive: true });
  assert.match(
    await refusal(copy, file, undefined),
    /is a copy, or was moved: stop the other one, or, .* hosts moved two$/,
  );
  assert.match(await refusal(two, file, "three"), /has joined as host two: set CAPSULE_HOST_NAME=two$/);
  assert.match(await refusal(two, founded().file, "two"), /belongs to another cluster: use its cluster file/);
  assert.match(
    await refusal(folder(), { ...file, cluster: "ffffffffffffffff" }, "x"),
    /database belongs to another cluster/,
  );
  assert.match(
    await refusal(folder(), { ...file, postgres: server.newDatabase() }, "x"),
    /has no cluster; run capsule admin/,
  );
  assert.match(
    await refusal(folder(), { ...file, postgres: "postgres://x@127.0.0.1:9/x" }, "x"),
    /cannot be joined, .* reached/,
  );
  assert.match(await refusal(folder(), file, "no name"), /cannot be a host's name: set CAPSULE_HOST_NAME/);
  assert.match(
    await refusal(folder(), file, "x", nothing, 0),
    /cannot reach a peer port of 0: set CAPSULE_PEER_PORT, or CAPSULE_PEER_URL=HOST:PORT$/,
  );
  const blue = { id: "team-blue", name: "blue" };
  const of = (some: Partial<Holdings>) => refusal(folder(), file, "x", { ...nothing, ...some });
  assert.match(await of({ capsules: 2 }), /has 2 capsules, which the cluster does not have/);
  assert.match(await of({ templates: [{ name: "tools", storage: "t1" }] }), /has the template tools/);
  assert.match(await of({ teams: [blue, { id: "team-red", name: "red" }] }), /has the team red \(team-red\)/);
  assert.match(await of({ teams: [blue], keys: [{ id: "key-1", team: "blue" }] }), /has the key key-1 of team blue/);
  const damaged = folder();
  writeFileSync(join(damaged, "host.json"), "{}");
  assert.match(await refusal(damaged, file, "x"), /host.json is damaged/);
  assert.equal(readHostFile(two)?.epoch, 1);
});
