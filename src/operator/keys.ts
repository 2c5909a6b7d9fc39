/** `capsule keys`: API keys, made and revoked on the server's own machine, whether it runs or not. */
import { mkdirSync } from "node:fs";
import { parseArgs } from "node:util";
import { loadConfig } from "../config.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { type KeyRow, TeamRows } from "../db/team-rows.ts";
import { Teams } from "../teams/teams.ts";

export async function keys(args: string[]): Promise<number> {
  const [verb, ...rest] = args;
  const { dataDir } = loadConfig();
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const database = openDatabase(databasePath(dataDir));
  try {
    const teams = new Teams(new TeamRows(database));
    const log = new AuditRows(database);
    if (verb === "create") return create(teams, log, rest);
    if (verb === "list") return list(teams);
    if (verb === "revoke") return revoke(teams, log, rest);
  } finally {
    database.close();
  }
  console.error("usage: capsule keys create --team NAME [--name LABEL] | keys list | keys revoke KEY_ID");
  return 2;
}

function create(teams: Teams, log: AuditRows, args: string[]): number {
  const { values } = parseArgs({ args, options: { team: { type: "string" }, name: { type: "string", default: "" } } });
  if (values.team === undefined) {
    console.error("capsule keys create: say which team with --team NAME");
    return 2;
  }
  const teamId = teams.ensure(values.team).id;
  const { id, key } = teams.createKey(teamId, values.name);
  log.append([{ ...byOperator(teamId), action: "key.create", subject: id, status: 201 }]);
  console.log(key);
  return 0;
}

function list(teams: Teams): number {
  const rows = teams
    .keys()
    .map((key) => [
      key.id,
      key.team,
      key.label,
      new Date(key.createdAt).toISOString(),
      stateOf(key),
      key.lastUsedAt === null ? "never used" : `used ${new Date(key.lastUsedAt).toISOString()}`,
    ]);
  for (const row of rows) console.log(row.join("\t"));
  return 0;
}

function stateOf({ revokedAt, expiresAt }: KeyRow): string {
  if (revokedAt !== null) return "revoked";
  return expiresAt !== null && expiresAt <= Date.now() ? "expired" : "live";
}

function revoke(teams: Teams, log: AuditRows, args: string[]): number {
  const [keyId] = args;
  if (keyId === undefined) {
    console.error("capsule keys revoke: say which key by its id; capsule keys list shows them");
    return 2;
  }
  const teamId = teams.keys().find((key) => key.id === keyId)?.teamId;
  teams.revokeKey(keyId);
  if (teamId !== undefined) log.append([{ ...byOperator(teamId), action: "key.revoke", subject: keyId, status: 204 }]);
  return 0;
}

/** The team sees what was done to its keys from outside the API, too. */
function byOperator(teamId: string) {
  return { at: Date.now(), teamId, keyId: "operator", keyName: "", address: "", capsuleId: null };
}
