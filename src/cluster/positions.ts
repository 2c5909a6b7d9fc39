/**
 * Positions in the changes of a team: by version, and within one by capsule and template. Their text is the id of an event, the same at
 * every host: the version where all of its changes have been told, else with the mark of the last one.
 */
import { rowSelection } from "./rows.ts";

export interface Position {
  version: number;
  mark: string;
}

/** Behind all marks. */
const last = "~";
const form = /^(\d{1,15})(?:\.([ct]:[\x21-\x7d]{1,200}))?$/;

export function endOf(version: number): Position {
  return { version, mark: last };
}

/** By bytes, as the statement does: all marks are ASCII. */
export function compare(one: Position, other: Position): number {
  if (one.version !== other.version) return one.version - other.version;
  return one.mark === other.mark ? 0 : one.mark < other.mark ? -1 : 1;
}

export function textOf({ version, mark }: Position): string {
  return mark === last ? String(version) : `${version}.${mark}`;
}

/** undefined: it is none. */
export function positionOf(text: string): Position | undefined {
  const [, version, mark = last] = form.exec(text) ?? [];
  return version === undefined ? undefined : { version: Number(version), mark };
}

/** A part of the changes of one table, in the order of positions. */
function part(kind: string, mark: string, data: string, rest: string): string {
  return `(SELECT version, ${mark} AS mark, ${kind} AS kind, ${data} AS data FROM ${rest}
    AND team_id = $1 AND version >= $2 AND version <= $4
    AND (version > $2 OR (${mark}) COLLATE "C" > $3) AND (version < $4 OR (${mark}) COLLATE "C" <= $5)
    ORDER BY version, ${mark} COLLATE "C" LIMIT $6)`;
}

const template = `jsonb_build_object('name', name, 'vcpus', vcpus, 'memoryMb', memory_mb, 'sizeBytes', size_bytes, 'createdAt', created_at)`;

/** The changes of team $1 behind the position ($2, $3) up to ($4, $5), $6 at most. A template that another one has replaced is not told. */
export const changesStatement = `SELECT version, mark, kind, data FROM (
  ${part(
    "'capsule'",
    "'c:' || id",
    `(SELECT to_jsonb(shown) FROM (SELECT ${rowSelection}, host) shown)`,
    "capsules WHERE true",
  )} UNION ALL
  ${part("'capsule-removed'", "'c:' || id", "jsonb_build_object('id', id)", "tombstones WHERE true")} UNION ALL
  ${part(
    "CASE WHEN retired_at IS NULL THEN 'template' ELSE 'template-removed' END",
    "'t:' || name",
    template,
    "templates WHERE (retired_at IS NULL OR is_deleted)",
  )}) changes ORDER BY version, mark COLLATE "C" LIMIT $6`;
