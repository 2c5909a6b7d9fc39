/** The findings of `capsule doctor` about the database of a cluster. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { newClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { databaseFindings } from "../../src/operator/database-check.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const folder = mkdtempSync(join(tmpdir(), "capsule-database-check-"));
after(() => rmSync(folder, { recursive: true }));

test("a database without a synchronous replica, with another clock, or that does not answer is a warning", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  const path = join(folder, "cluster.json");
  writeClusterFile(path, newClusterFile(database.url, Buffer.alloc(32, 1), undefined));
  const found = async (aheadMs = 0) => {
    const findings = await databaseFindings(path, () => Date.now() + aheadMs);
    return findings.map(({ word, name }) => `${word} ${name}`);
  };
  assert.deepEqual(await found(), ["ok database", "warning replication", "ok clock"]);
  for (const aheadMs of [-3_600_000, 3_600_000])
    assert.deepEqual((await found(aheadMs)).at(-1), "warning clock", String(aheadMs));
  const [, , clock] = await databaseFindings(path, () => Date.now() + 3_600_000);
  assert.match(clock!.text, /^this machine's clock is \d+\.\d s ahead of the database's: /);
  await server.stop();
  assert.deepEqual(await found(), ["warning database"]);
  assert.deepEqual(await databaseFindings(join(folder, "none.json")), []);
});
