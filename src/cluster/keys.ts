/** Keys and teams: made or ended in PostgreSQL first, then in this host's own tables. */
import type { CatalogKey } from "../db/catalog-rows.ts";
import type { NewKeyRow, TeamRow, TeamUse } from "../db/team-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Postgres } from "./postgres.ts";

const uniqueViolation = "23505";

export interface NewKeyOptions {
  /** The number of the team's live keys is below it; undefined: any number, for the operator. */
  most?: number;
  revokedKeepMs: number;
}

/** Throws "unauthorized" when its maker has ended, "quota_exceeded", "unavailable", and "conflict" for the id of another key. */
export async function addKey(sql: Postgres, row: NewKeyRow, { most, revokedKeepMs }: NewKeyOptions): Promise<void> {
  const columns = {
    ...{ id: row.id, team_id: row.teamId, label: row.label, prefix: row.prefix, hash: row.hash },
    ...{ created_at: row.createdAt, expires_at: row.expiresAt, made_by: row.madeBy, is_session: row.isSession ? 1 : 0 },
  };
  const values = [JSON.stringify(columns), most ?? null, revokedKeepMs];
  await sql.call("add_key", values, { what: "make a key" }).catch((error: unknown) => {
    if ((error as { code?: unknown }).code !== uniqueViolation) throw error;
    throw new CapsuleError("conflict", "another key has this id", { cause: error });
  });
}

export interface TeamsAndKeys {
  teams: (TeamRow & { deletedAt: number | null })[];
  keys: CatalogKey[];
}

/** All that have a higher number of the catalog, deleted teams and ended keys too. */
export async function teamsAndKeys(sql: Postgres, after: number): Promise<TeamsAndKeys> {
  const what = { what: "read teams and keys" };
  const teams = await sql.query<TeamsAndKeys["teams"][number] & Record<string, unknown>>(
    `SELECT id, name, created_at AS "createdAt", deleted_at AS "deletedAt" FROM teams WHERE catalog > $1 ORDER BY catalog`,
    [after],
    what,
  );
  const keys = await sql.query<CatalogKey>(
    `SELECT k.id, k.team_id AS "teamId", k.label, k.prefix, k.hash, k.created_at AS "createdAt", COALESCE(k.revoked_at, t.deleted_at) AS "revokedAt",
       k.expires_at AS "expiresAt", k.made_by AS "madeBy", k.is_session AS "isSession"
     FROM keys k JOIN teams t ON t.id = k.team_id WHERE k.catalog > $1 ORDER BY k.catalog`,
    [after],
    what,
  );
  return { teams, keys };
}

/** The ids of the keys that end with this one. */
export function revokeKey(sql: Postgres, id: string, atMs: number, keepMade = false): Promise<string[]> {
  return sql.call<string[]>("revoke_key", [id, atMs, keepMade], { what: "revoke a key" });
}

export interface CountedTeam extends TeamUse {
  /** Live ones. */
  keys: number;
}

/** By name, with the numbers of their keys, capsules and templates on all hosts. */
export async function listTeams(sql: Postgres): Promise<CountedTeam[]> {
  return await sql.query<CountedTeam & Record<string, unknown>>(
    `SELECT id, name, created_at AS "createdAt",
       (SELECT COUNT(*) FROM keys WHERE team_id = t.id AND revoked_at IS NULL AND COALESCE(expires_at > now_ms(), true)) AS keys,
       (SELECT COUNT(*) FROM capsules WHERE team_id = t.id) AS capsules,
       (SELECT COUNT(*) FROM templates WHERE team_id = t.id AND retired_at IS NULL) AS templates
     FROM teams t WHERE deleted_at IS NULL ORDER BY name COLLATE "C"`,
    [],
    { what: "list the teams" },
  );
}

/** The team of that name, which `row` becomes where there is none. */
export async function ensureTeam(sql: Postgres, { id, name, createdAt }: TeamRow): Promise<TeamRow> {
  const [team] = await sql.query<TeamRow>(
    `SELECT id, name, created_at AS "createdAt" FROM ensure_team($1, $2, $3)`,
    [id, name, createdAt],
    { what: "make a team" },
  );
  return team!;
}

/** Throws "conflict" while it has capsules or templates. */
export async function deleteTeam(sql: Postgres, id: string, atMs: number): Promise<void> {
  await sql.call("delete_team", [id, atMs], { what: "delete a team" });
}
