/** The teams of a data folder, and their audit log, for commands that work whether the server runs or not. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { loadConfig } from "../config.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { requireDatabase } from "../host/disk/lost-database.ts";
import { Teams } from "../teams/teams.ts";
import type { SharedTeams } from "./shared-teams.ts";

/** `shared`: where teams and keys are changed in a cluster; undefined: the data folder is that of a host alone. */
export async function withTeams(
  work: (teams: Teams, log: AuditRows, capsules: CapsuleRows, shared: SharedTeams | undefined) => void | Promise<void>,
): Promise<number> {
  const { dataDir, cluster } = loadConfig();
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const file = databasePath(dataDir);
  requireDatabase(dataDir, file);
  const database = openDatabase(file);
  const teams = new Teams(new TeamRows(database));
  let shared: SharedTeams | undefined;
  try {
    if (cluster !== undefined || existsSync(join(dataDir, "host.json")))
      shared = await (await import("./shared-teams.ts")).openSharedTeams(cluster, teams, database);
    await work(teams, new AuditRows(database), new CapsuleRows(database), shared);
    return 0;
  } finally {
    await shared?.close();
    database.close();
  }
}

/** The team's audit log also shows changes that were made outside of the API. */
export function byOperator(teamId: string) {
  return { at: Date.now(), teamId, keyId: "operator", keyName: "", address: "", capsuleId: null };
}
