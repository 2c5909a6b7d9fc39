/** Starts and commands while a migration has the cluster's tables, also of a host that has died in it. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { newClusterFile } from "../../src/cluster/cluster-file.ts";
import { joinCluster } from "../../src/cluster/joining.ts";
import { Postgres, type PostgresOptions, type Transaction } from "../../src/cluster/postgres.ts";
import { migrate, schemaOf } from "../../src/cluster/schema/migration.ts";
import { within } from "../wait-for.ts";
import { Link } from "./link.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase, clusterId, patient, slowness } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const work = mkdtempSync(join(tmpdir(), "capsule-locked-"));
after(() => rmSync(work, { recursive: true }));
const silent = { info() {}, warn() {}, error() {} };
const locked =
  "the cluster's tables are locked: another host or a command changes them, or has died in it; try again in a minute";

async function opened(url: string, transactMs: PostgresOptions["transactMs"] = {}) {
  const sql = await Postgres.open({ url, ...patient, transactMs });
  return Object.assign(sql, { [Symbol.asyncDispose]: () => sql.close() });
}

async function joined(url: string, dataDir: string, transactMs: PostgresOptions["transactMs"] = {}) {
  await using sql = await opened(url, transactMs);
  const file = { ...newClusterFile(url, Buffer.alloc(32)), cluster: clusterId };
  const holdings = () => ({ capsules: 0, teams: [], keys: [], templates: [] });
  return await joinCluster({
    ...{ sql, file, dataDir, name: "d", machineName: "d", version: "0.0.0", holdings, log: silent },
    peer: { address: undefined, port: 8_079 },
  });
}

/** A migration that has the tables until `end` is called; `next` is a part of it. */
async function migrating(sql: Postgres, next = async (_: Transaction) => {}) {
  const begun = Promise.withResolvers<void>();
  const { promise, resolve: end } = Promise.withResolvers<void>();
  const migration = sql.transact(async (each) => {
    await migrate(each, clusterId);
    await next(each);
    begun.resolve();
    await promise;
  });
  migration.catch(begun.reject);
  await within("the migration to begin", begun.promise);
  return { migration, end };
}

test("a start that finds the tables locked is refused in one sentence, also where the folder has joined before", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using other = await opened(database.url);
  const [known, unknown] = [mkdtempSync(join(work, "data-")), mkdtempSync(join(work, "data-"))];
  const { me } = await joined(database.url, known);
  const { migration, end } = await migrating(other);
  for (const dataDir of [known, unknown]) {
    const refused = joined(database.url, dataDir, { lock: 5 });
    await assert.rejects(within("the refusal", refused), { message: locked });
  }
  end();
  await migration;
  assert.deepEqual((await joined(database.url, known, { lock: 5 })).me, { ...me, epoch: me.epoch + 1 });
});

test("a migration goes on behind that of a host that has died in it", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await using link = await Link.to(server);
  await using died = await opened(link.urlOf(database.url), { silent: 2_000 });
  await using sql = await opened(database.url);
  const { migration, end } = await migrating(died, async (each) => {
    const { rows } = await each.query("SELECT current_setting('idle_in_transaction_session_timeout') AS silent");
    assert.deepEqual(rows, [{ silent: "1min" }], `${slowness} times 2 s`);
    await each.query("SET LOCAL idle_in_transaction_session_timeout = '100ms'"); // nothing has to be sent in it any more
  });
  link.hold(); // its connection is half open
  await within(
    "the other migration",
    sql.transact((each) => migrate(each, clusterId)),
  );
  link.cut();
  end();
  await assert.rejects(within("its failure", migration));
});

test("a transaction whose answers do not come is given up", { skip }, async () => {
  await using database = await clusterDatabase(server);
  await using link = await Link.to(server);
  await using sql = await opened(link.urlOf(database.url), { query: 200 });
  await sql.transact((each) => schemaOf(each));
  link.hold("answers");
  await assert.rejects(
    within(
      "its failure",
      sql.transact((each) => schemaOf(each)),
    ),
    /timeout/,
  );
});
