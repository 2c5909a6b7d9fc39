/** Templates and kept answers of a team, read from PostgreSQL. */
import type { Postgres } from "./postgres.ts";

/** A template as all hosts show it. */
export interface RemoteTemplate {
  name: string;
  vcpus: number;
  memoryMb: number;
  sizeBytes: number;
  createdAt: number;
}

const what = { what: "read the templates" };

/** Newest first. */
export function templatesOf(sql: Postgres, teamId: string): Promise<RemoteTemplate[]> {
  return sql.query<RemoteTemplate>(
    `SELECT name, vcpus, memory_mb AS "memoryMb", size_bytes AS "sizeBytes", created_at AS "createdAt"
     FROM templates WHERE team_id = $1 AND retired_at IS NULL ORDER BY created_at DESC, version DESC`,
    [teamId],
    what,
  );
}

/** The host that has the files of the team's template of that name. */
export async function findTemplate(
  sql: Postgres,
  teamId: string,
  name: string,
): Promise<{ storage: string; host: string } | undefined> {
  if (name.includes("\0")) return undefined; // PostgreSQL has no such text
  const [row] = await sql.query<{ storage: string; host: string }>(
    "SELECT storage, made_on AS host FROM templates WHERE team_id = $1 AND name = $2 AND retired_at IS NULL",
    [teamId, name],
    what,
  );
  return row;
}

export async function retireTemplate(sql: Postgres, storage: string, atMs: number): Promise<void> {
  await sql.call("retire_template", [storage, atMs], { what: "delete a template" });
}

export interface KeptByCluster {
  bodyHash: string;
  status: number;
  answer: string;
  /** The host that has given it. */
  host: string;
  /** Its capsule may not be there: no status of it has come since it was decided, and its host may undo it. */
  isDoubtful: boolean;
}

export async function keptAnswer(
  sql: Postgres,
  { teamId, route, key }: { teamId: string; route: string; key: string },
): Promise<KeptByCluster | undefined> {
  const [row] = await sql.query<KeptByCluster>(
    `SELECT k.body_hash AS "bodyHash", k.status, k.answer, k.host, EXISTS (SELECT 1 FROM capsules c
       WHERE c.id = k.subject AND c.intent = 'create' AND (c.status = 'starting' OR c.lost_at IS NOT NULL)) AS "isDoubtful"
     FROM idempotency k
     WHERE k.team_id = $1 AND k.route = $2 AND k.key = $3 AND k.expires_at > now_ms() AND k.answer IS NOT NULL`,
    [teamId, route, key],
    { what: "look for the answer to an Idempotency-Key" },
  );
  return row;
}

/** Quotas hold from the next answer on; each host reads the others when it starts. */
export async function setLimit(sql: Postgres, name: string, value: number): Promise<void> {
  await sql.query(
    "UPDATE cluster SET limits = limits || jsonb_build_object($1::text, $2::bigint), catalog = catalog + 1",
    [name, value],
    { what: "change a limit" },
  );
}
