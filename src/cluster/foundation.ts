/** A new cluster, of one data folder: its tables, with the teams, keys, templates and capsules that the folder has. */
import type { CapsuleRow } from "../db/capsule-rows.ts";
import type { KeyRow, TeamRow } from "../db/team-rows.ts";
import type { TemplateRow } from "../db/template-rows.ts";
import type { HostFile } from "./host-file.ts";
import type { Postgres } from "./postgres.ts";
import { columnsOf } from "./rows.ts";
import { createSchema, type Statements } from "./schema/migration.ts";

export interface FirstKey
  extends Pick<KeyRow, "id" | "teamId" | "label" | "prefix" | "createdAt" | "revokedAt" | "expiresAt" | "madeBy"> {
  /** SHA-256 in hexadecimal digits. */
  hash: string;
  isSession: boolean;
}

export interface FirstHost {
  host: HostFile;
  place: string;
  limits: Readonly<Record<string, number>>;
  teams: readonly TeamRow[];
  keys: readonly FirstKey[];
  templates: readonly TemplateRow[];
  /** Without those that are being destroyed, oldest first. */
  capsules: readonly CapsuleRow[];
  /** A capsule's epoch in the last cluster that the folder was in, or 1. */
  epochOf: (id: string) => number;
}

const rowsAtOnce = 500;

/** All of it or nothing. Throws when the database has a cluster. */
export async function foundCluster(sql: Postgres, first: FirstHost): Promise<void> {
  const { host, place, limits } = first;
  await sql.transact(async (each) => {
    await createSchema(each, { id: host.cluster, limits });
    await each.query("SELECT join_host($1, $2, $3, $4, '', 0, '', 0, '{}')", [
      host.name,
      host.nonce,
      place,
      host.epoch - 1,
    ]);
    await insert(
      each,
      "teams",
      first.teams.map(({ id, name, createdAt }) => ({ id, name, created_at: createdAt, catalog: 1, version: 0 })),
    );
    await insert(each, "keys", first.keys.map(keyColumns));
    await insert(
      each,
      "templates",
      first.templates.map((row) => ({ ...templateColumns(row), made_on: host.name })),
    );
    // The sequence numbers keep the order of the folder's list.
    const held = first.capsules.map((row) => ({
      ...columnsOf(row),
      ...{ host: host.name, epoch: first.epochOf(row.id), copy: 0, version: 0 },
    }));
    await insert(each, "capsules", held, "seq");
  });
}

function keyColumns(key: FirstKey) {
  return {
    ...{ id: key.id, team_id: key.teamId, label: key.label, prefix: key.prefix, hash: key.hash, catalog: 1 },
    ...{ created_at: key.createdAt, revoked_at: key.revokedAt, expires_at: key.expiresAt, made_by: key.madeBy },
    is_session: key.isSession ? 1 : 0,
  };
}

/** Without the host that made it. */
export function templateColumns(row: TemplateRow) {
  return {
    ...{ storage: row.storage, team_id: row.teamId, name: row.name, vcpus: row.vcpus, memory_mb: row.memoryMb },
    ...{ disk_mb: row.diskMb, can_grow: row.canGrow, size_bytes: row.sizeBytes, created_at: row.createdAt },
    ...{ retired_at: row.retiredAt, is_deleted: false, version: 0, catalog: 1 },
  };
}

/** `serial`: a column that the database numbers, in the order of the rows. */
async function insert(sql: Statements, table: string, rows: readonly object[], serial?: string): Promise<void> {
  const [first] = rows;
  if (first === undefined) return;
  const names = Object.keys(first).join(", ");
  for (let from = 0; from < rows.length; from += rowsAtOnce) {
    const values = JSON.stringify(rows.slice(from, from + rowsAtOnce));
    const order = serial === undefined ? "" : " WITH ORDINALITY";
    await sql.query(
      serial === undefined
        ? `INSERT INTO ${table} (${names}) SELECT ${names} FROM jsonb_populate_recordset(NULL::${table}, $1)`
        : `INSERT INTO ${table} (${names}) SELECT ${names} FROM jsonb_array_elements($1)${order} AS each (value, place),
             jsonb_populate_record(NULL::${table}, each.value) ORDER BY place`,
      [values],
    );
  }
}
