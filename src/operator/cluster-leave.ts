/**
 * `capsule admin cluster leave` (docs/adr/0127). The server empties the host and ends; then this command alone has the folder.
 *
 *   member ──► drained ──► server ended ──► row of the host gone ──► rows of the folder gone ──► host.json is left.json: alone
 *
 * The last host is not drained: its server brings here what no host holds, and the cluster ends with its row (docs/adr/0128).
 *
 * Wherever the command is ended, the same command goes on from what it finds.
 */
import { rmSync } from "node:fs";
import type { Call } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import type { ClusterFile } from "../cluster/cluster-file.ts";
import { type HostFile, hasLeft, markLeft, placeOf, readHostFile } from "../cluster/host-file.ts";
import {
  bringTeamsAndKeys,
  leaveHost,
  type Standing,
  standingOf,
  tellLast,
  templatesOnlyOn,
} from "../cluster/left-hosts.ts";
import type { Postgres } from "../cluster/postgres.ts";
import { migrate } from "../cluster/schema/migration.ts";
import { type Config, loadConfig } from "../config.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { CatalogRows } from "../db/catalog-rows.ts";
import { forgetCluster, forgetReleases } from "../db/cluster-traces.ts";
import { type Database, databasePath, openDatabase } from "../db/database.ts";
import { HoldingRows } from "../db/holding-rows.ts";
import { type DataLock, isLocked, lockData } from "../host/disk/lock.ts";
import { Paths } from "../host/disk/paths.ts";
import { stepWithFault } from "../host/steps.ts";
import { SecretKey } from "../secret.ts";
import { messageOf } from "../wire/errors.ts";
import { openCluster } from "./cluster.ts";
import { graceMs, stopServer } from "./down.ts";
import { drained, drainSec } from "./drains.ts";
import { endWithLast, isGathered, requireWhole } from "./last-leave.ts";

export async function leaveCluster(call: Pick<Call, "seconds">): Promise<number> {
  const deadlineMs = (call.seconds("deadline") ?? drainSec) * 1_000;
  const config = loadConfig();
  const { file, sql } = await openCluster();
  try {
    const own = memberFile(config.dataDir, file);
    if (own === undefined) return done(config.dataDir, "the host has left the cluster already");
    const standing = await readStanding(sql, file, own, config.dataDir);
    const { isLast, hasLeft } = standing;
    const isReady = () =>
      isLast ? isGathered({ sql, own, config }, deadlineMs) : isEmptied({ sql, file, own, config }, deadlineMs);
    if (!hasLeft && !(await isReady())) return 1;
    const lock = await lockEnded(config);
    try {
      await leave(sql, file, config);
    } finally {
      lock.release();
    }
    return done(config.dataDir, `host ${own.name} has left the cluster`);
  } finally {
    await sql.close();
  }
}

function done(dataDir: string, what: string): number {
  console.error(`capsule: ${what}; ${dataDir} serves alone: start it without CAPSULE_CLUSTER`);
  return 0;
}

/** Undefined: the folder has left. */
function memberFile(dataDir: string, file: ClusterFile): HostFile | undefined {
  const own = readHostFile(dataDir);
  if (own === undefined && hasLeft(dataDir)) return undefined;
  if (own === undefined)
    throw new Failure(
      `the data folder ${dataDir} has joined no cluster`,
      "Run the command on the host that is to leave, with its CAPSULE_DATA.",
    );
  if (own.cluster !== file.cluster)
    throw new Failure("the data folder belongs to another cluster than the cluster file");
  return own;
}

/** Changes nothing but the schema. */
async function readStanding(sql: Postgres, file: ClusterFile, own: HostFile, dataDir: string): Promise<Standing> {
  await sql
    .transact((each) => migrate(each, file.cluster))
    .catch((error: unknown) => {
      throw new Failure(`the cluster cannot be left, since its database cannot be used: ${messageOf(error)}`);
    });
  const standing = await standingOf(sql, own);
  if (standing === undefined)
    throw new Failure(
      `the cluster has no host ${own.name} of this data folder`,
      "Start its server with CAPSULE_CLUSTER, which says what became of it.",
    );
  if (standing.hasLeft) return standing;
  if (!standing.isOwnPlace)
    throw new Failure("the cluster's database was put back", "Run capsule admin cluster confirm first.");
  if (standing.place !== "" && standing.place !== placeOf(dataDir))
    throw new Failure(
      `the data folder ${dataDir} is a copy of that of host ${own.name}, or was moved`,
      `Run the command where the host runs; or, if it was moved, type capsule admin hosts moved ${own.name}, and start it.`,
    );
  return standing;
}

interface Member {
  sql: Postgres;
  file: ClusterFile;
  own: HostFile;
  config: Config;
}

/** False: something stays, and was named. The host stays in the cluster, drained. */
async function isEmptied({ sql, file, own, config }: Member, deadlineMs: number): Promise<boolean> {
  const { name } = own;
  const templates = await templatesOnlyOn(sql, name);
  if (templates.length > 0) {
    console.error(`capsule: host ${name} does not leave: no other host could get these templates`);
    for (const each of templates) console.error(`${each.name} of team ${each.team}: its files are on this host alone`);
    return false;
  }
  const waits = isLocked(config.dataDir);
  const { count, lines } = await drained(sql, name, { deadlineMs, waits, hasBucket: file.bucket !== undefined });
  if (count === 0) return true;
  const without = waits ? "" : ", and its server, which would move them, does not run";
  console.error(`capsule: host ${name} does not leave, and takes no capsules: it holds ${count}${without}`);
  for (const line of lines) console.error(line);
  console.error(
    `capsule: once these are gone, run the command again; capsule admin hosts resume ${name} ends the drain`,
  );
  return false;
}

/** Starts of a server by its socket unit, between its end and the lock. */
const attempts = 3;

async function lockEnded({ dataDir, drainMs }: Config): Promise<DataLock> {
  for (let left = attempts; ; left--) {
    await stopServer(dataDir, drainMs + graceMs);
    try {
      return lockData(dataDir);
    } catch (error) {
      if (left === 1 || !isLocked(dataDir)) throw error;
    }
  }
}

/** No server of the folder runs, and none can start. */
async function leave(sql: Postgres, file: ClusterFile, config: Config): Promise<void> {
  const { dataDir } = config;
  const step = stepWithFault(config.crashAt);
  const own = memberFile(dataDir, file);
  if (own === undefined) return;
  const database = openDatabase(databasePath(dataDir));
  try {
    const standing = await standingOf(sql, own);
    const hasLeft = standing?.hasLeft === true;
    const isLast = hasLeft ? own.ending !== undefined && own.ending === standing.endedAs : standing?.isLast === true;
    if (!isLast) requireNone(dataDir, database, hasLeft);
    if (!hasLeft) {
      if (isLast) await requireWhole(sql, own, dataDir, database);
      const rows = { audit: new AuditRows(database), holding: new HoldingRows(database) };
      await tellLast(sql, own.name, { ...rows, log: said });
      await bringTeamsAndKeys(sql, new CatalogRows(database), Date.now());
      step("leave.told");
    }
    SecretKey.keep(dataDir, file.valuesKey);
    if (!isLast) await leaveHost(sql, own);
    else if (!hasLeft) await endWithLast({ sql, own, config }, database);
    step("leave.left");
    if (isLast) forgetReleases(database);
    else forgetCluster(database);
    rmSync(new Paths(dataDir).releasedFolder, { recursive: true, force: true });
    step("leave.cleared");
    markLeft(dataDir);
  } finally {
    database.close();
  }
}

function requireNone(dataDir: string, database: Database, hasLeftThere: boolean): void {
  const { length } = new CapsuleRows(database).all();
  if (length === 0) return;
  const has = `the data folder ${dataDir} has ${length === 1 ? "a capsule" : `${length} capsules`}`;
  if (hasLeftThere)
    throw new Failure(
      `${has} from before its host has left: it is an older copy`,
      "Use the folder that has left, or an empty one.",
    );
  throw new Failure(
    `${has} that the cluster does not have at this host`,
    "Start its server with CAPSULE_CLUSTER, wait a minute, and run the command again.",
  );
}

const said = {
  info() {},
  warn: (_about: unknown, message = "") => console.error(`capsule: ${message}`),
  error: (_about: unknown, message = "") => console.error(`capsule: ${message}`),
};
