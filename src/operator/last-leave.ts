/** The part of `capsule admin cluster leave` that is the last host's alone: it gathers all that is elsewhere, and the cluster ends with it. */
import { setTimeout as delay } from "node:timers/promises";
import { Failure } from "../cli/failures.ts";
import { type HostFile, newNonce, writeHostFile } from "../cluster/host-file.ts";
import {
  beginGathering,
  bringAnswers,
  endCluster,
  isWhole,
  limitsOf,
  lostWithOthers,
  type Missing,
  missingIn,
} from "../cluster/last-host.ts";
import type { Postgres } from "../cluster/postgres.ts";
import { isOfMachine } from "../cluster/shared-limits.ts";
import type { Config } from "../config.ts";
import { type Database, databasePath, openDatabase } from "../db/database.ts";
import { isLocked } from "../host/disk/lock.ts";

export interface LastHost {
  sql: Postgres;
  own: HostFile;
  config: Config;
}

/** Capsules that are named. */
const namedMax = 1_000;
const askMs = 1_000;

/** False: something is not in the folder yet, and was named. The host goes on gathering. */
export async function isGathered({ sql, own, config }: LastHost, deadlineMs: number): Promise<boolean> {
  const { dataDir } = config;
  await beginGathering(sql, own.name);
  const until = performance.now() + deadlineMs;
  const database = openDatabase(databasePath(dataDir));
  try {
    for (;;) {
      const missing = await missingIn(sql, own.name, database, namedMax);
      if (isNothing(missing)) return true;
      const leftMs = until - performance.now();
      if (leftMs <= 0 || !isLocked(dataDir)) {
        tellOf(missing, own.name, isLocked(dataDir));
        return false;
      }
      await delay(Math.min(askMs, leftMs));
    }
  } finally {
    database.close();
  }
}

function isNothing({ capsules, templates, coming }: Missing): boolean {
  return capsules === 0 && templates.length === 0 && coming === 0;
}

function tellOf({ capsules, first, templates, coming }: Missing, name: string, hasServer: boolean): void {
  const without = hasServer ? "" : "; its server, which would bring them here, does not run";
  console.error(
    `capsule: host ${name} does not leave: ${capsules} capsules and ${templates.length} templates are in the bucket alone, and ${coming} capsules are on their way here${without}`,
  );
  for (const { id, why } of first) console.error(`${id} paused: ${why ?? "it is on its way"}`);
  if (capsules > first.length) console.error(`and ${capsules - first.length} more`);
  for (const each of templates) console.error(`${each.name} of team ${each.team}: its files are on their way`);
  console.error(
    `capsule: once these are here or gone, run the command again; capsule admin hosts resume ${name} lets the host release capsules again`,
  );
}

/** Throws where the folder is not as PostgreSQL has it. */
export async function requireWhole(sql: Postgres, own: HostFile, dataDir: string, database: Database): Promise<void> {
  if ((await isWhole(sql, own.name, database)) && isNothing(await missingIn(sql, own.name, database, 1))) return;
  throw new Failure(
    `the data folder ${dataDir} does not hold what the cluster says of it`,
    "Start its server with CAPSULE_CLUSTER, wait a minute, and run the command again.",
  );
}

/** The cluster ends, and the folder has its answers. Capsules and templates that stay behind are named. */
export async function endWithLast({ sql, own, config }: LastHost, database: Database): Promise<void> {
  await bringAnswers(sql, database);
  const { capsules, templates } = await lostWithOthers(sql, own.name, database);
  const ending = newNonce(); // a copy of the folder from before has none, or another one
  writeHostFile(config.dataDir, { ...own, ending });
  await endCluster(sql, own, ending);
  for (const { id, host } of capsules) console.error(`${id} stays behind: it was on host ${host}, which is gone`);
  for (const each of templates)
    console.error(`${each.name} of team ${each.team} stays behind: a host that is gone had it`);
  const other = Object.entries(await limitsOf(sql)).filter(
    ([name, value]) => !isOfMachine(name) && (config.limits as unknown as Record<string, unknown>)[name] !== value,
  );
  if (other.length === 0) return;
  const settings = other.map(([name, value]) => `CAPSULE_${name.toUpperCase()}=${value}`);
  console.error(`capsule: the cluster's limits hold no longer; to keep them, set ${settings.join(" ")}`);
}
