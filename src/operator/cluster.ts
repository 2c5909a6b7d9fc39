/** `capsule admin cluster` and `capsule admin hosts`: a cluster of several hosts, from any host that has its file. */
import { type Call, UsageError } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import { print } from "../cli/screen.ts";
import { readClusterFile } from "../cluster/cluster-file.ts";
import { declareGone, forgetPlace, heldBy, hostSummaries, resumeHost } from "../cluster/host-list.ts";
import { hasEnded } from "../cluster/last-host.ts";
import { Postgres } from "../cluster/postgres.ts";
import { confirmPlace } from "../cluster/put-back.ts";
import { schemaOf } from "../cluster/schema/migration.ts";
import { setLimit } from "../cluster/shared.ts";
import { isOfMachine } from "../cluster/shared-limits.ts";
import { loadConfig } from "../config.ts";
import { limitRows } from "../limits.ts";
import { messageOf } from "../wire/errors.ts";
import { nearest } from "../wire/nearest.ts";
import { checkBucket } from "./bucket-check.ts";
import { drained, drainSec, linesOf } from "./drains.ts";

const ticks = () => performance.now();

/** Whether file, database and schema fit together, and the bucket can be used. */
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
    if (await hasEnded(sql)) throw new Failure("the cluster has ended, since its last host has left it");
    if (file.bucket !== undefined) await checkBucket(file.bucket);
    const also = file.bucket === undefined ? "" : ", and the bucket takes, lists, returns and deletes objects";
    console.log(`cluster ${found.id}, schema ${found.schema}: the file and the database fit together${also}`);
    return 0;
  } finally {
    await sql.close();
  }
}

/** A line for each thing that a database which was put back had forgotten: what, id and host. */
export async function confirmCluster(): Promise<number> {
  const { sql } = await openCluster();
  try {
    const { was, silent, changes } = await confirmPlace(sql);
    if (was === "own")
      console.error("capsule: the database is the one that the cluster knows; there is nothing to confirm");
    if (was === "other")
      throw new Failure(
        `hosts have not told what they hold: ${silent.join(", ")}`,
        "Start them and wait some seconds, or declare one that never comes back gone: capsule admin hosts gone NAME.",
      );
    if (was === "confirmed") await print(changes.map(({ what, id, host }) => `${what}\t${id}\t${host}\n`).join(""));
    return 0;
  } finally {
    await sql.close();
  }
}

/** `NAME=VALUE` of a limit that all hosts share. */
export async function setClusterLimit({ words: [assignment = ""] }: Pick<Call, "words">): Promise<number> {
  const [name = "", value = ""] = assignment.split("=", 2);
  const parsed = limitOf(name, value);
  const { sql } = await openCluster();
  try {
    await setLimit(sql, name, parsed);
    return 0;
  } finally {
    await sql.close();
  }
}

function limitOf(name: string, value: string): number {
  if (isOfMachine(name))
    throw new UsageError(`${name} follows from the hosts' machines: set CAPSULE_${name.toUpperCase()} of a host`);
  if (!Object.hasOwn(limitRows, name)) {
    const meant = nearest(name, Object.keys(limitRows));
    throw new UsageError(`${JSON.stringify(name)} is no limit; ${meant ?? "GET /v1/limits lists them"}`);
  }
  try {
    return limitRows[name as keyof typeof limitRows].parse(value);
  } catch (error) {
    throw new UsageError(`${name} ${messageOf(error)}`);
  }
}

/**
 * A line each: name, state, capsules held and live, memory, version, seconds since it was seen. Behind that of a host that is being drained
 * the number of capsules that are left there, and the first of them with the reasons, each behind a tab.
 */
export async function listHosts(call: Pick<Call, "isSet">): Promise<number> {
  const { file, sql } = await openCluster();
  try {
    const hosts = await hostSummaries(sql);
    if (call.isSet("json")) {
      await print(`${JSON.stringify(hosts)}\n`);
      return 0;
    }
    const lines: string[] = [];
    for (const { name, state, held, live, memory_mb, version, last_seen_sec } of hosts) {
      const numbers = [`${held} held`, `${live} live`, `${memory_mb} MiB`, version, `${last_seen_sec} s`];
      lines.push([name, state, ...numbers].join("\t"));
      if (state === "draining") lines.push(...(await leftOn(sql, name, file.bucket !== undefined)));
    }
    await print(lines.map((line) => `${line}\n`).join(""));
    return 0;
  } finally {
    await sql.close();
  }
}

/** Capsules that are named of each host. */
const listedMax = 5;

async function leftOn(sql: Postgres, name: string, hasBucket: boolean): Promise<string[]> {
  const left = await heldBy(sql, name, listedMax, hasBucket);
  if (left.count === 0) return [];
  const named = linesOf(left, hasBucket).map((line) => `\t${line}`);
  return [`\t${left.count} left, ${left.staying} of which cannot be moved`, ...named];
}

/** The next start of that host tells the cluster where its folder is. */
export async function moveHost({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  const { sql } = await openCluster();
  try {
    await forgetPlace(sql, name);
    return 0;
  } catch (error) {
    const { code } = error as { code?: unknown };
    const remedy = code === "conflict" ? remedies.CP012 : code === "not_found" ? remedies.CP003 : undefined;
    throw remedy === undefined ? error : new Failure(messageOf(error), remedy);
  } finally {
    await sql.close();
  }
}

/** Final: see `declareGone`. */
export async function goneHost({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  const { sql } = await openCluster();
  try {
    const capsules = await declareGone(sql, name);
    console.error(`capsule: host ${name} is gone; ${capsules} of its capsules are in status error`);
    return 0;
  } catch (error) {
    const remedy = remedies[(error as { raised?: string }).raised ?? ""];
    throw remedy === undefined ? error : new Failure(messageOf(error), remedy);
  } finally {
    await sql.close();
  }
}

const remedies: Readonly<Record<string, string>> = {
  CP003: "List them by capsule admin hosts.",
  CP012: "Stop its server first, or its machine.",
  CP013: "It takes none.",
};

/** With `wait` until it holds nothing, or what it holds stays, for `deadline` at most. */
export async function drain({
  words: [name = ""],
  ...call
}: Pick<Call, "words" | "isSet" | "seconds">): Promise<number> {
  const deadlineMs = (call.seconds("deadline") ?? drainSec) * 1_000;
  const { file, sql } = await openCluster();
  try {
    const options = { deadlineMs, waits: call.isSet("wait"), hasBucket: file.bucket !== undefined };
    const { count, lines } = await drained(sql, name, options);
    console.error(`capsule: host ${name} takes no capsules, and holds ${count === 0 ? "none" : count}`);
    for (const line of lines) console.error(line);
    return options.waits && count > 0 ? 1 : 0;
  } catch (error) {
    const remedy = remedies[(error as { raised?: string }).raised ?? ""];
    throw remedy === undefined ? error : new Failure(messageOf(error), remedy);
  } finally {
    await sql.close();
  }
}

/** Ends what a drain has begun. */
export async function resumeDrained({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  const { sql } = await openCluster();
  try {
    const state = await resumeHost(sql, name);
    if (state === undefined) throw new Failure(`the cluster has no host ${name}`, remedies.CP003);
    if (state === "gone")
      throw new Failure(`host ${name} was declared gone`, "Join with an empty data folder under another name.");
    return 0;
  } finally {
    await sql.close();
  }
}

/** By the file of CAPSULE_CLUSTER. Opens no connection yet. */
export async function openCluster() {
  const { cluster: path } = loadConfig();
  if (path === undefined) throw new Failure("this host is alone", "Set CAPSULE_CLUSTER to the cluster's file.");
  const file = readClusterFile(path);
  return { file, sql: await Postgres.open({ url: file.postgres, ticks }) };
}
