/** `capsule admin cluster` and `capsule admin hosts`: a cluster of several hosts, from any host that has its file. */
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { hostname } from "node:os";
import { join, resolve } from "node:path";
import { type Call, UsageError } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import { print } from "../cli/screen.ts";
import { newClusterFile, readClusterFile, requireSafeUrl, writeClusterFile } from "../cluster/cluster-file.ts";
import { foundCluster } from "../cluster/foundation.ts";
import { newNonce, placeOf, readHostFile, writeHostFile } from "../cluster/host-file.ts";
import { hostSummaries } from "../cluster/host-list.ts";
import { Postgres } from "../cluster/postgres.ts";
import { schemaOf } from "../cluster/schema/migration.ts";
import { type Config, loadConfig } from "../config.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { CatalogRows } from "../db/catalog-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { lockData } from "../host/disk/lock.ts";
import { requireDatabase } from "../host/disk/lost-database.ts";
import { SecretKey, secretKeyName } from "../secret.ts";
import { messageOf } from "../wire/errors.ts";

const ticks = () => performance.now();

/** The folder's capsules, keys and templates become the cluster's; nothing is changed when it fails. */
export async function initCluster(call: Pick<Call, "text">): Promise<number> {
  const url = call.text("postgres");
  if (url === undefined) throw new UsageError("--postgres URL is missing");
  const config = loadConfig();
  const path = resolve(call.text("file") ?? join(config.dataDir, "cluster.json"));
  requireSafeUrl(url, "--postgres");
  if (existsSync(path)) throw new Failure(`${path} exists already`, "Use another --file, or remove it.");
  mkdirSync(config.dataDir, { recursive: true, mode: 0o700 });
  const lock = lockData(config.dataDir);
  try {
    await found(config, url, path);
  } finally {
    lock.release();
  }
  console.log(path);
  console.error(`capsule: copy ${path} to each host (mode 0600), and start all with CAPSULE_CLUSTER=FILE`);
  return 0;
}

async function found(config: Config, url: string, path: string): Promise<void> {
  const { dataDir } = config;
  const joined = readHostFile(dataDir);
  if (joined !== undefined) throw new Failure(`the data folder ${dataDir} has joined a cluster as host ${joined.name}`);
  requireDatabase(dataDir, databasePath(dataDir));
  SecretKey.ofFolder(dataDir); // made where there is none
  const valuesKey = Buffer.from(readFileSync(join(dataDir, secretKeyName), "latin1").trim(), "hex");
  const file = newClusterFile(url, valuesKey);
  const database = openDatabase(databasePath(dataDir));
  const sql = await Postgres.open({ url, ticks });
  try {
    const catalog = new CatalogRows(database);
    const host = { cluster: file.cluster, name: config.hostName ?? hostname(), nonce: newNonce(), epoch: 1 };
    const capsules = new CapsuleRows(database).all().filter(({ intent }) => intent !== "destroy");
    await foundCluster(sql, {
      ...{ host: { ...host, limits: config.limits }, place: placeOf(dataDir), limits: config.limits },
      ...{ teams: catalog.teams(), capsules: capsules.sort((a, b) => a.createdAt - b.createdAt) },
      keys: catalog.keys().map((key) => ({ ...key, isSession: key.isSession !== 0 })),
      templates: new TemplateRows(database).all(),
    });
    writeClusterFile(path, file);
    writeHostFile(dataDir, { ...host, limits: config.limits });
  } finally {
    database.close();
    await sql.close();
  }
}

/** Whether file, database and schema fit together. */
export async function checkCluster(): Promise<number> {
  const { file, sql } = await openCluster();
  try {
    const found = await sql
      .transact((each) => schemaOf(each))
      .catch((error: unknown) => {
        throw new Failure(`the cluster's database cannot be reached: ${messageOf(error)}`);
      });
    if (found === undefined) throw new Failure("the database has no cluster", "Run capsule admin cluster init.");
    if (found.id !== file.cluster) throw new Failure("the database belongs to another cluster than the cluster file");
    console.log(`cluster ${found.id}, schema ${found.schema}: the file and the database fit together`);
    return 0;
  } finally {
    await sql.close();
  }
}

/** A line each: name, state, capsules held and live, memory, version, seconds since it was seen. */
export async function listHosts(call: Pick<Call, "isSet">): Promise<number> {
  const { sql } = await openCluster();
  try {
    const hosts = await hostSummaries(sql);
    const lines = hosts.map(({ name, state, held, live, memory_mb, version, last_seen_sec }) =>
      [name, state, `${held} held`, `${live} live`, `${memory_mb} MiB`, version, `${last_seen_sec} s`].join("\t"),
    );
    await print(call.isSet("json") ? `${JSON.stringify(hosts)}\n` : lines.map((line) => `${line}\n`).join(""));
    return 0;
  } finally {
    await sql.close();
  }
}

/** The next start of that host tells the cluster where its folder is. */
export async function moveHost({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  const { sql } = await openCluster();
  try {
    const moved = await sql.query("UPDATE hosts SET place = '' WHERE name = $1 RETURNING name", [name], {
      what: "note that a host has moved",
    });
    if (moved.length === 0) throw new Failure(`the cluster has no host ${name}`, "List them by capsule admin hosts.");
    return 0;
  } finally {
    await sql.close();
  }
}

async function openCluster() {
  const { cluster: path } = loadConfig();
  if (path === undefined) throw new Failure("this host is alone", "Set CAPSULE_CLUSTER to the cluster's file.");
  const file = readClusterFile(path);
  return { file, sql: await Postgres.open({ url: file.postgres, ticks }) };
}
