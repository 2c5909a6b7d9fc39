/** How a host leaves its cluster for good, by PostgreSQL. */
import type { AuditRows } from "../db/audit-rows.ts";
import type { CatalogRows } from "../db/catalog-rows.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";
import { revokedKeepMs } from "../teams/teams.ts";
import { AuditShipping } from "./audit-shipping.ts";
import type { HostFile } from "./host-file.ts";
import { teamsAndKeys } from "./keys.ts";
import type { Postgres } from "./postgres.ts";

/** A host's standing in its cluster. */
export interface Standing {
  /** As `placeOf` at its last join; '': its next start tells. */
  place: string;
  /** PostgreSQL is the one that the cluster knows. */
  isOwnPlace: boolean;
  /** No other host is there that was not declared gone. */
  isLast: boolean;
  hasLeft: boolean;
  /** As HostFile.ending, of a cluster that has ended; null: it has not. */
  endedAs: string | null;
}

const what = { what: "leave the cluster" };
/** Prefixes of one statement. */
const rowsMax = 100;

/** Undefined: the cluster has no such host of this folder, and never had one. */
export async function standingOf(sql: Postgres, { name, nonce }: HostFile): Promise<Standing | undefined> {
  const [found] = await sql.query<Standing & { isThere: boolean }>(
    `SELECT COALESCE((SELECT place FROM hosts WHERE name = $1 AND nonce = $2), '') AS place,
       EXISTS (SELECT 1 FROM hosts WHERE name = $1 AND nonce = $2) AS "isThere",
       EXISTS (SELECT 1 FROM left_hosts WHERE nonce = $2) AS "hasLeft",
       NOT EXISTS (SELECT 1 FROM hosts WHERE name <> $1 AND state <> 'gone') AS "isLast", is_own_place() AS "isOwnPlace",
       (SELECT ended_as FROM cluster) AS "endedAs"`,
    [name, nonce],
    what,
  );
  const { isThere, ...standing } = found!;
  return isThere || standing.hasLeft ? standing : undefined;
}

/** Templates that the host alone has, by team and name. */
export async function templatesOnlyOn(sql: Postgres, name: string): Promise<{ team: string; name: string }[]> {
  return await sql.query<{ team: string; name: string }>(
    `SELECT teams.name AS team, t.name FROM templates_only_on($1) t JOIN teams ON teams.id = t.team_id ORDER BY 1, 2`,
    [name],
    what,
  );
}

export interface LastWords {
  audit: AuditRows;
  holding: HoldingRows;
  log: Log;
}

/** The cluster gets audit entries that it lacks, and the uploads that nobody ends. Throws "unavailable". */
export async function tellLast(sql: Postgres, host: string, { audit, holding, log }: LastWords): Promise<void> {
  const shipping = new AuditShipping({ sql, host, rows: audit, log });
  await shipping.ship();
  audit.noteSent(shipping.sentThrough);
  for (let found = holding.uploads(rowsMax); found.length > 0; found = holding.uploads(rowsMax)) {
    await sql.call("add_garbage", [found], { what: "note what the bucket need not keep" });
    holding.forgetUploads(found);
  }
}

/** The row of the host goes. Throws a Refusal where something would be lost with it. */
export async function leaveHost(sql: Postgres, { name, nonce }: HostFile): Promise<void> {
  await sql.call("leave_host", [name, nonce], what);
}

/** Teams and keys of the folder are the cluster's, as they are now. */
export async function bringTeamsAndKeys(sql: Postgres, rows: CatalogRows, atMs: number): Promise<void> {
  const { teams, keys } = await teamsAndKeys(sql, 0);
  const live = teams.filter(({ deletedAt }) => deletedAt === null);
  rows.put(live, keys, { expired: atMs, revoked: atMs - revokedKeepMs });
  const [known, liveTeams] = [new Set(keys.map(({ id }) => id)), new Set(live.map(({ id }) => id))];
  const forgotten = rows.keys().filter(({ id, revokedAt }) => revokedAt === null && !known.has(id));
  rows.endKeys(
    forgotten.map(({ id }) => id),
    atMs,
  );
  for (const { id } of rows.teams()) if (!liveTeams.has(id)) rows.endTeam(id, atMs);
}
