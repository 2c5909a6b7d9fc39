/** The end of a cluster: the things that its last host gets before, and the statement by which it ends (docs/adr/0128). */
import { type CapsuleRow, CapsuleRows } from "../db/capsule-rows.ts";
import { type Database, transact } from "../db/database.ts";
import { HoldingRows } from "../db/holding-rows.ts";
import { type IdempotencyRow, IdempotencyRows } from "../db/idempotency-rows.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { idempotencyKeepSec, idempotencyKeysMax, idempotencyMaxBytes } from "../wire/idempotency.ts";
import type { HostFile } from "./host-file.ts";
import type { Postgres } from "./postgres.ts";

const what = { what: "end the cluster" };

/** The host's server begins to bring what is elsewhere. Throws a Refusal where another host is there. */
export async function beginGathering(sql: Postgres, name: string): Promise<void> {
  await sql.call("begin_gathering", [name], what);
}

export interface Missing {
  /** Capsules that no host holds, and of the first ones why they could not be brought; null: they were not tried. */
  capsules: number;
  first: { id: string; why: string | null }[];
  /** Templates of the bucket whose files the folder lacks. */
  templates: { team: string; name: string }[];
  /** Capsules that are on their way into the folder, or are to run again here. */
  coming: number;
}

/** Capsules and templates that the folder of the last host lacks yet. */
export async function missingIn(sql: Postgres, name: string, database: Database, most: number): Promise<Missing> {
  // One statement: a capsule that is brought here at this moment is in one of the two counts.
  const [found] = await sql.query<{ released: number; held: number; first: Missing["first"] }>(
    `SELECT (SELECT COUNT(*) FROM capsules WHERE host IS NULL) AS released, (SELECT COUNT(*) FROM capsules WHERE host = $1) AS held,
       (SELECT COALESCE(jsonb_agg(f), '[]') FROM
         (SELECT id, CASE WHEN stays_in IS NULL THEN stays END AS why FROM capsules WHERE host IS NULL ORDER BY id LIMIT $2) f) AS first`,
    [name, most],
    what,
  );
  const { released, held, first } = found!;
  const own = new CapsuleRows(database).all().filter(({ intent }) => intent !== "destroy").length;
  const templates = await sql.query<{ team: string; name: string }>(
    `SELECT n.name AS team, t.name FROM templates t JOIN teams n ON n.id = t.team_id
       JOIN artifacts a ON a.kind = 'template' AND a.key = t.storage AND NOT a.is_pending
     WHERE t.retired_at IS NULL AND t.storage <> ALL($1) ORDER BY 1, 2`,
    [new TemplateRows(database).all().map(({ storage }) => storage)],
    what,
  );
  return {
    ...{ capsules: released, first, templates },
    coming: Math.max(0, held - own) + new HoldingRows(database).allMoving().length,
  };
}

/** Capsules and templates of hosts that were declared gone: they stay behind. */
export interface Lost {
  capsules: { id: string; host: string }[];
  templates: { team: string; name: string }[];
}

export async function lostWithOthers(sql: Postgres, name: string, database: Database): Promise<Lost> {
  const capsules = await sql.query<{ id: string; host: string }>(
    "SELECT id, host FROM capsules WHERE host <> $1 ORDER BY id",
    [name],
    what,
  );
  const templates = await sql.query<{ team: string; name: string }>(
    `SELECT n.name AS team, t.name FROM templates t JOIN teams n ON n.id = t.team_id
     WHERE t.retired_at IS NULL AND t.storage <> ALL($1) ORDER BY 1, 2`,
    [new TemplateRows(database).all().map(({ storage }) => storage)],
    what,
  );
  return { capsules, templates };
}

/** Whether the folder, whose server has ended, holds each capsule as PostgreSQL has it, and no release of one may be under way. */
export async function isWhole(sql: Postgres, name: string, database: Database): Promise<boolean> {
  const holding = new HoldingRows(database);
  const held = await sql.query<{ id: string; epoch: number }>(
    "SELECT id, epoch FROM capsules WHERE host = $1",
    [name],
    what,
  );
  const own = new Map(new CapsuleRows(database).all().map((row): [string, CapsuleRow] => [row.id, row]));
  const areHere = held.every(({ id, epoch }) => own.has(id) && holding.epoch(id) === epoch);
  const known = new Set(held.map(({ id }) => id));
  const areKnown = [...own.values()].every(({ id, intent }) => known.has(id) || intent === "destroy");
  return areHere && areKnown && holding.allReleasing().length === 0;
}

/** Answers to requests with an Idempotency-Key that other hosts have given: the folder gives them from now on. */
export async function bringAnswers(sql: Postgres, database: Database): Promise<void> {
  const rows = await sql.query<IdempotencyRow & Record<string, unknown>>(
    `SELECT team_id AS "teamId", route, key, body_hash AS "bodyHash", status, answer, expires_at - $1 AS "keptAt"
     FROM idempotency WHERE answer IS NOT NULL AND expires_at > now_ms() ORDER BY expires_at`,
    [idempotencyKeepSec * 1_000],
    what,
  );
  const kept = new IdempotencyRows(database);
  const most = { rows: idempotencyKeysMax, bytes: idempotencyMaxBytes };
  transact(database, () => {
    for (const row of rows) if (kept.get(row) === undefined) kept.keep(row, most);
  });
}

/** Nothing is decided in the cluster from here on, and the folder is not its host's any longer. `as`: HostFile.ending. */
export async function endCluster(sql: Postgres, { name, nonce }: HostFile, as: string): Promise<void> {
  await sql.call("end_cluster", [name, nonce, as], what);
}

/** Also of a database that was not brought up to this release yet. */
export async function hasEnded(sql: Postgres): Promise<boolean> {
  const [row] = await sql.query<{ hasEnded: boolean }>(
    `SELECT to_jsonb(c) ->> 'ended_at' IS NOT NULL AS "hasEnded" FROM cluster c`,
    [],
    what,
  );
  return row?.hasEnded === true;
}

/** The limits of all hosts. */
export async function limitsOf(sql: Postgres): Promise<Record<string, number>> {
  const [row] = await sql.query<{ limits: Record<string, number> }>("SELECT limits FROM cluster", [], what);
  return row?.limits ?? {};
}
