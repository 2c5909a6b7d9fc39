/** The teams of a data folder, and their audit log, for commands that work whether the server runs or not. */
import { mkdirSync } from "node:fs";
import { loadConfig } from "../config.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { requireDatabase } from "../host/disk/lost-database.ts";
import { Teams } from "../teams/teams.ts";

export async function withTeams(
  work: (teams: Teams, log: AuditRows, capsules: CapsuleRows) => void | Promise<void>,
): Promise<number> {
  const { dataDir } = loadConfig();
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const file = databasePath(dataDir);
  requireDatabase(dataDir, file);
  const database = openDatabase(file);
  try {
    await work(new Teams(new TeamRows(database)), new AuditRows(database), new CapsuleRows(database));
    return 0;
  } finally {
    database.close();
  }
}

/** The team's audit log also shows changes that were made outside of the API. */
export function byOperator(teamId: string) {
  return { at: Date.now(), teamId, keyId: "operator", keyName: "", address: "", capsuleId: null };
}
