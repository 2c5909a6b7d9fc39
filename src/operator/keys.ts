/** `capsule admin keys`: the API keys of every team, read from and written to the data folder without the server. */
import { type Call, UsageError } from "../cli/command.ts";
import type { KeyRow } from "../db/team-rows.ts";
import { printRows } from "./listing.ts";
import { byOperator, withTeams } from "./team-records.ts";

export async function createKey(call: Pick<Call, "text">): Promise<number> {
  const team = call.text("team");
  if (team === undefined) throw new UsageError("--team NAME is missing");
  return withTeams(async (alone, log, _capsules, shared) => {
    const teams = shared ?? alone;
    const teamId = (await teams.ensure(team)).id;
    const { id, key } = await teams.createKey(teamId, call.text("name") ?? "");
    log.append([{ ...byOperator(teamId), action: "key.create", subject: id, status: 201 }]);
    console.log(key);
  });
}

export async function listKeys(): Promise<number> {
  return withTeams(async (teams) => {
    const rows = teams.keys().map((key) => {
      const used = key.lastUsedAt === null ? "never used" : `used ${new Date(key.lastUsedAt).toISOString()}`;
      return [key.id, key.team, key.label, new Date(key.createdAt).toISOString(), stateOf(key), used];
    });
    await printRows(["KEY", "TEAM", "NAME", "CREATED", "STATE", "LAST USE"], rows);
  });
}

/** Prints the ids of the revoked keys: that key and those made with it. */
export async function revokeKey(call: Pick<Call, "words" | "isSet">): Promise<number> {
  return withTeams(async (teams, log, _capsules, shared) => {
    const [keyId = ""] = call.words;
    const teamId = teams.keys().find((key) => key.id === keyId)?.teamId;
    const revoked = await (shared ?? teams).revokeKey(keyId, call.isSet("keep-made"));
    if (teamId !== undefined) {
      const entry = { ...byOperator(teamId), action: "key.revoke" as const, status: 204 };
      log.append(revoked.map((subject) => ({ ...entry, subject })));
    }
    for (const id of revoked) console.log(id);
  });
}

function stateOf({ revokedAt, expiresAt }: KeyRow): string {
  if (revokedAt !== null) return "revoked";
  return expiresAt !== null && expiresAt <= Date.now() ? "expired" : "live";
}
