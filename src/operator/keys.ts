/** `capsule admin keys`: the API keys of every team, read from and written to the data folder without the server. */
import { mkdirSync } from "node:fs";
import { type Call, UsageError } from "../cli/command.ts";
import { loadConfig } from "../config.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { type KeyRow, TeamRows } from "../db/team-rows.ts";
import { requireDatabase } from "../host/disk/lost-database.ts";
import { Teams } from "../teams/teams.ts";

export async function createKey(call: Pick<Call, "text">): Promise<number> {
  const team = call.text("team");
  if (team === undefined) throw new UsageError("--team NAME is missing");
  return withTeams((teams, log) => {
    const teamId = teams.ensure(team).id;
    const { id, key } = teams.createKey(teamId, call.text("name") ?? "");
    log.append([{ ...byOperator(teamId), action: "key.create", subject: id, status: 201 }]);
    console.log(key);
  });
}

export async function listKeys(): Promise<number> {
  return withTeams((teams) => {
    for (const key of teams.keys()) {
      const used = key.lastUsedAt === null ? "never used" : `used ${new Date(key.lastUsedAt).toISOString()}`;
      const created = new Date(key.createdAt).toISOString();
      console.log([key.id, key.team, key.label, created, stateOf(key), used].join("\t"));
    }
  });
}

/** Prints the ids of the revoked keys: that key and those made with it. */
export async function revokeKey(call: Pick<Call, "words" | "isSet">): Promise<number> {
  return withTeams((teams, log) => {
    const [keyId = ""] = call.words;
    const teamId = teams.keys().find((key) => key.id === keyId)?.teamId;
    const revoked = teams.revokeKey(keyId, call.isSet("keep-made"));
    if (teamId !== undefined) {
      const entry = { ...byOperator(teamId), action: "key.revoke" as const, status: 204 };
      log.append(revoked.map((subject) => ({ ...entry, subject })));
    }
    for (const id of revoked) console.log(id);
  });
}

function withTeams(work: (teams: Teams, log: AuditRows) => void): number {
  const { dataDir } = loadConfig();
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const file = databasePath(dataDir);
  requireDatabase(dataDir, file);
  const database = openDatabase(file);
  try {
    work(new Teams(new TeamRows(database)), new AuditRows(database));
    return 0;
  } finally {
    database.close();
  }
}

function stateOf({ revokedAt, expiresAt }: KeyRow): string {
  if (revokedAt !== null) return "revoked";
  return expiresAt !== null && expiresAt <= Date.now() ? "expired" : "live";
}

/** The team's audit log also shows changes that were made outside of the API. */
function byOperator(teamId: string) {
  return { at: Date.now(), teamId, keyId: "operator", keyName: "", address: "", capsuleId: null };
}
