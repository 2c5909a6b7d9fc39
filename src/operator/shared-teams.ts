/**
 * Teams and keys of a cluster: changed in its database first, then in this host's own, as its server follows them. Counts and the audit
 * log are read there.
 */
import { sentEntries } from "../cluster/audit-shipping.ts";
import { readClusterFile } from "../cluster/cluster-file.ts";
import { addKey, type CountedTeam, deleteTeam, ensureTeam, listTeams, revokeKey } from "../cluster/keys.ts";
import { Postgres } from "../cluster/postgres.ts";
import type { AuditQuery, AuditRow } from "../db/audit-rows.ts";
import { CatalogRows } from "../db/catalog-rows.ts";
import type { Database } from "../db/database.ts";
import type { TeamRow } from "../db/team-rows.ts";
import { revokedKeepMs, type Teams } from "../teams/teams.ts";
import { CapsuleError } from "../wire/errors.ts";

export class SharedTeams {
  readonly #sql: Postgres;
  readonly #teams: Teams;
  readonly #rows: CatalogRows;

  constructor(sql: Postgres, teams: Teams, rows: CatalogRows) {
    this.#sql = sql;
    this.#teams = teams;
    this.#rows = rows;
  }

  /** Teams of the cluster, counted over all hosts. */
  list(): Promise<CountedTeam[]> {
    return listTeams(this.#sql);
  }

  /** As the hosts have sent them, newest first. */
  audit(teamId: string, query: AuditQuery): Promise<AuditRow[]> {
    return sentEntries(this.#sql, teamId, query);
  }

  async ensure(name: string): Promise<TeamRow> {
    const team = await ensureTeam(this.#sql, this.#teams.draftTeam(name));
    this.#rows.put([team], [], { expired: 0, revoked: 0 });
    return team;
  }

  async createKey(teamId: string, label: string): Promise<{ id: string; key: string }> {
    const { row, made } = this.#teams.draft({ teamId, label, expiresAt: null, madeBy: null, isSession: false });
    await addKey(this.#sql, row, { revokedKeepMs });
    this.#rows.put([], [{ ...row, revokedAt: null, isSession: 0 }], { expired: 0, revoked: 0 });
    return made;
  }

  async revokeKey(id: string, keepMade: boolean): Promise<string[]> {
    const revoked = await revokeKey(this.#sql, id, this.#teams.now(), keepMade);
    if (revoked.length === 0) throw new CapsuleError("not_found", `there is no live key ${JSON.stringify(id)}`);
    return this.#teams.isLive(id) ? this.#teams.revokeKey(id, keepMade) : revoked;
  }

  async delete(team: TeamRow): Promise<void> {
    await deleteTeam(this.#sql, team.id, this.#teams.now());
    this.#teams.forget(team);
  }

  close(): Promise<void> {
    return this.#sql.close();
  }
}

/** Throws where the folder belongs to a cluster, and its file is not given. */
export async function openSharedTeams(
  path: string | undefined,
  teams: Teams,
  database: Database,
): Promise<SharedTeams> {
  if (path === undefined)
    throw new Error("the data folder belongs to a cluster: set CAPSULE_CLUSTER to the cluster's file");
  const { postgres } = readClusterFile(path);
  const sql = await Postgres.open({ url: postgres, ticks: () => performance.now() });
  return new SharedTeams(sql, teams, new CatalogRows(database));
}
