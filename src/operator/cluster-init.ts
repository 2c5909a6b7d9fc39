/**
 * `capsule admin cluster init`. The cluster's file is on disk before the database's commit, and the folder's host.json follows it: wherever
 * the command is ended, the same command goes on from what it finds.
 */
import { existsSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { hostname } from "node:os";
import { join, resolve } from "node:path";
import { type BucketAccess, requireBucketUrl } from "../bucket/access.ts";
import { type Call, UsageError } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import { secretLines } from "../cli/secrets.ts";
import {
  type ClusterFile,
  isCredential,
  newClusterFile,
  prepareClusterFile,
  readClusterFile,
  requireSafeUrl,
  writeClusterFile,
} from "../cluster/cluster-file.ts";
import { isAnswer } from "../cluster/failures.ts";
import { foundCluster } from "../cluster/foundation.ts";
import { type HostFile, newNonce, placeOf, readHostFile, writeHostFile } from "../cluster/host-file.ts";
import { Postgres } from "../cluster/postgres.ts";
import { schemaOf } from "../cluster/schema/migration.ts";
import { type Config, loadConfig } from "../config.ts";
import type { CapsuleRow } from "../db/capsule-columns.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { CatalogRows } from "../db/catalog-rows.ts";
import { type Database, databasePath, openDatabase } from "../db/database.ts";
import { HoldingRows } from "../db/holding-rows.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { lockData } from "../host/disk/lock.ts";
import { requireDatabase } from "../host/disk/lost-database.ts";
import { SecretKey, secretKeyName } from "../secret.ts";
import { messageOf } from "../wire/errors.ts";
import { checkBucket } from "./bucket-check.ts";

/** The folder's capsules, keys and templates become the cluster's; nothing is changed when it is refused. */
export async function initCluster(call: Pick<Call, "text">): Promise<number> {
  const url = call.text("postgres");
  if (url === undefined) throw new UsageError("--postgres URL is missing");
  requireSafeUrl(url, "--postgres");
  if (hasPassword(url))
    throw new UsageError(
      "a password on the command line is seen by all users of the machine: leave it out of the URL; it is asked for, or is a line on standard input",
    );
  const bucket = call.text("bucket");
  if (bucket !== undefined) requireBucketUrl(bucket, "--bucket");
  const config = loadConfig();
  const path = resolve(call.text("file") ?? join(config.dataDir, "cluster.json"));
  mkdirSync(config.dataDir, { recursive: true, mode: 0o700 });
  const lock = lockData(config.dataDir);
  try {
    await init(config, { postgres: url, bucket }, path);
  } finally {
    lock.release();
  }
  console.log(path);
  console.error(`capsule: copy ${path} to each host (mode 0600), and start all with CAPSULE_CLUSTER=FILE`);
  return 0;
}

interface Urls {
  postgres: string;
  bucket: string | undefined;
}

async function init(config: Config, urls: Urls, path: string): Promise<void> {
  const { dataDir } = config;
  const joined = readHostFile(dataDir);
  const kept = existsSync(path) ? readClusterFile(path) : undefined;
  if (joined !== undefined && joined.cluster === kept?.cluster) return; // nothing is left to do
  if (joined !== undefined) throw new Failure(`the data folder ${dataDir} has joined a cluster as host ${joined.name}`);
  requireDatabase(dataDir, databasePath(dataDir));
  SecretKey.ofFolder(dataDir); // made where there is none
  const valuesKey = Buffer.from(readFileSync(join(dataDir, secretKeyName), "latin1").trim(), "hex");
  if (kept !== undefined && !isOwn(kept, urls, valuesKey))
    throw new Failure(`${path} exists already`, "Use another --file, or remove it.");
  if (kept === undefined) requireWritable(path);
  console.error(takenBy(config, path));
  const file = kept ?? (await askedFile(urls, valuesKey));
  if (file.bucket !== undefined) await checkBucket(file.bucket);
  const sql = await Postgres.open({ url: file.postgres, ticks: () => performance.now() });
  try {
    const found = await sql.transact((each) => schemaOf(each));
    if (found !== undefined && found.id !== file.cluster)
      throw new Failure("the database has the tables of a cluster already");
    if (kept === undefined) writeClusterFile(path, file);
    if (found === undefined) await foundIn(sql, config, { file, path, isNew: kept === undefined });
    writeHostFile(dataDir, await firstHost(sql, file, dataDir));
  } finally {
    await sql.close();
  }
}

/** Before a password is typed, which would be asked for again. */
function requireWritable(path: string): void {
  try {
    prepareClusterFile(path);
  } catch (error) {
    throw new Failure(`the cluster's file cannot be written: ${messageOf(error)}`, "Name another one by --file.");
  }
}

/** The folder follows from the environment, and may be another one than the service's. */
function takenBy({ dataDir, hostName = hostname() }: Config, path: string): string {
  const [capsules, teams] = countsOf(databasePath(dataDir));
  return [
    `capsule: host ${hostName}`,
    `capsule: data folder ${dataDir}, with capsules: ${capsules}, teams: ${teams}`,
    `capsule: cluster file ${path}`,
  ].join("\n");
}

function countsOf(file: string): [capsules: number, teams: number] {
  if (!existsSync(file)) return [0, 0];
  const database = openDatabase(file);
  try {
    return [becoming(database).length, new CatalogRows(database).teams().length];
  } finally {
    database.close();
  }
}

/** The capsules that become the cluster's. */
function becoming(database: Database): CapsuleRow[] {
  return new CapsuleRows(database).all().filter(({ intent }) => intent !== "destroy");
}

/** The keys to database and bucket stand on no command line and in no environment. */
async function askedFile({ postgres, bucket: url }: Urls, valuesKey: Buffer): Promise<ClusterFile> {
  const ofBucket = url === undefined ? [] : ["Access key id of the bucket", "Secret access key of the bucket"];
  const [password = "", ...keys] = await secretLines(["Password of PostgreSQL", ...ofBucket]);
  const wrong = keys.findIndex((key) => !isCredential(key));
  if (wrong !== -1)
    throw new Failure(
      `there is no ${ofBucket[wrong]!.toLowerCase()}, or it has a character that no key has`,
      "Standard input has a line for the password of PostgreSQL, which may be empty, and two for the bucket.",
    );
  const [accessKeyId = "", secretAccessKey = ""] = keys;
  const bucket: Omit<BucketAccess, "sealing"> | undefined =
    url === undefined ? undefined : { url, accessKeyId, secretAccessKey };
  return newClusterFile(withPassword(postgres, password), valuesKey, bucket);
}

interface Written {
  file: ClusterFile;
  path: string;
  isNew: boolean;
}

async function foundIn(sql: Postgres, config: Config, { file, path, isNew }: Written): Promise<void> {
  const { dataDir, limits } = config;
  const database = openDatabase(databasePath(dataDir));
  try {
    const catalog = new CatalogRows(database);
    const holding = new HoldingRows(database);
    const host = { cluster: file.cluster, name: config.hostName ?? hostname(), nonce: newNonce(), epoch: 1, limits };
    await foundCluster(sql, {
      ...{ host: { ...host, limits }, place: placeOf(dataDir), limits },
      ...{ teams: catalog.teams(), capsules: becoming(database).sort((a, b) => a.createdAt - b.createdAt) },
      keys: catalog.keys().map((key) => ({ ...key, isSession: key.isSession !== 0 })),
      templates: new TemplateRows(database).all(),
      epochOf: (id) => holding.epoch(id),
    });
  } catch (error) {
    if (!isAnswer(error))
      throw new Failure(
        `it is not known whether the cluster was made: ${messageOf(error)}`,
        "Run the same command again, which finishes it.",
      );
    if (isNew) rmSync(path, { force: true });
    throw error;
  } finally {
    database.close();
  }
}

/** As the database has it: this command, or an earlier one, has made it there. */
async function firstHost(sql: Postgres, file: ClusterFile, dataDir: string): Promise<HostFile> {
  const [host] = await sql.query<Omit<HostFile, "cluster">>(
    "SELECT name, nonce, epoch, limits FROM hosts, cluster WHERE place = $1",
    [placeOf(dataDir)],
    { what: "read the first host" },
  );
  if (host === undefined)
    throw new Failure(
      "the cluster of this file was made of another data folder",
      "To join it, start with CAPSULE_CLUSTER=FILE.",
    );
  return { ...host, cluster: file.cluster };
}

function hasPassword(url: string): boolean {
  const { password, searchParams } = new URL(url);
  return password !== "" || searchParams.has("password");
}

function withPassword(url: string, password: string): string {
  if (password === "") return url;
  const whole = new URL(url);
  whole.password = encodeURIComponent(password);
  if (whole.password === "") whole.searchParams.set("password", password); // a URL without a host has no place for it
  return whole.href;
}

/** A file of an earlier command with the same database, bucket and folder. */
function isOwn({ postgres, valuesKey, bucket }: ClusterFile, urls: Urls, own: Buffer): boolean {
  const bare = new URL(postgres);
  bare.password = "";
  bare.searchParams.delete("password");
  const isSame = bare.href === new URL(urls.postgres).href && bucket?.url === urls.bucket;
  return isSame && valuesKey.equals(own);
}
