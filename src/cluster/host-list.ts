/** The hosts of a cluster as its operator sees them, and what it says of them. */
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import type { Postgres } from "./postgres.ts";
import { liveRow } from "./schema/tables.ts";

export interface HostSummary {
  name: string;
  state: "up" | "expired" | "draining" | "drained" | "gone";
  machine: Record<string, unknown>;
  /** Capsules that it holds, and those of them that have a VM, with the memory of these. */
  held: number;
  live: number;
  memory_mb: number;
  /** Paused capsules that only this host has. */
  backlog: number;
  version: string;
  /** Since its last heartbeat. */
  last_seen_sec: number;
}

/** Since the last heartbeat that PostgreSQL has had of it. */
const expirySec = 12;
const what = { what: "list the hosts" };

/** By PostgreSQL's clock: a host of which no heartbeat was seen yet has expired, and was seen when it joined first. */
export async function hostSummaries(sql: Postgres): Promise<HostSummary[]> {
  return await sql.query<HostSummary & Record<string, unknown>>(
    `SELECT h.name, CASE WHEN h.state = 'up' AND (h.seen_at IS NULL OR s.sec >= ${expirySec}) THEN 'expired' ELSE h.state END AS state,
       h.machine, h.version, s.sec AS last_seen_sec, COUNT(c.id) AS held,
       COUNT(c.id) FILTER (WHERE ${liveRow}) AS live,
       COALESCE(SUM(c.memory_mb) FILTER (WHERE ${liveRow}), 0)::bigint AS memory_mb,
       COUNT(c.id) FILTER (WHERE c.status = 'paused' AND c.intent IS NULL) AS backlog
     FROM hosts h CROSS JOIN LATERAL (SELECT GREATEST(0, (now_ms() - COALESCE(h.seen_at, h.joined_at)) / 1000) AS sec) s
       LEFT JOIN capsules c ON c.host = h.name GROUP BY h.name, s.sec ORDER BY h.name`,
    [],
    what,
  );
}

async function countersOf(sql: Postgres): Promise<Map<string, number>> {
  const rows = await sql.query<{ name: string; heartbeat: number }>("SELECT name, heartbeat FROM hosts", [], what);
  return new Map(rows.map(({ name, heartbeat }) => [name, heartbeat]));
}

/** Longer than a heartbeat that has to connect anew. */
const silentMs = 12_000;
/** Rows of one statement. */
const rowsMax = 500;

/**
 * The host never joins again, and what it holds is in status `error`. Takes 12 seconds, in which the host must not move. Returns the
 * number of its capsules. Throws "not_found", and "conflict" while it is up. A repeat finishes what was ended midway.
 */
export async function declareGone(sql: Postgres, name: string, watchedMs = silentMs): Promise<number> {
  const counter = (await countersOf(sql)).get(name) ?? 0;
  await delay(watchedMs);
  await sql.call("declare_gone", [name, counter], { what: "declare a host gone" });
  let capsules = 0;
  for (let found = rowsMax; found === rowsMax; capsules += found)
    found = await sql.call<number>("end_gone", [name, rowsMax], { what: "end the capsules of a host" });
  return capsules;
}

/**
 * The next folder with the host's nonce that joins is the host's, wherever it lies. Takes 12 seconds, in which the host must not move: its
 * server would run beside that of the folder's copy. Throws "not_found", and "conflict" while it is up.
 */
export async function forgetPlace(sql: Postgres, name: string, watchedMs = silentMs): Promise<void> {
  const counter = (await countersOf(sql)).get(name);
  if (counter === undefined) throw new CapsuleError("not_found", `the cluster has no host ${name}`);
  await delay(watchedMs);
  const forgotten = await sql.query(
    "UPDATE hosts SET place = '' WHERE name = $1 AND heartbeat = $2 RETURNING name",
    [name, counter],
    { what: "note that a host has moved" },
  );
  if (forgotten.length === 0) throw new CapsuleError("conflict", `host ${name} is up`);
}

const drainMs = 600_000;

/**
 * The host gets no capsules any more, and begins no move behind the deadline. Its state. Throws "not_found", and "conflict" where it was
 * declared gone.
 */
export async function drainHost(sql: Postgres, name: string, deadlineMs = drainMs): Promise<string> {
  return await sql.call<string>("begin_drain", [name, deadlineMs], { what: "drain a host" });
}

export interface HeldCapsule {
  id: string;
  status: string;
  /** Why it stays, as the host has told in this drain; null: it has not. */
  stays: string | null;
}

/** Statuses of capsules that no host moves. */
const stayingStatuses = ["stopped", "error"];

/**
 * The number of capsules that a host holds, or is moving, how many of them stay, and the first ones by their ids. A paused one whose
 * template was deleted is not released, and without a bucket none is.
 */
export async function heldBy(
  sql: Postgres,
  name: string,
  most: number,
  hasBucket = true,
): Promise<{ count: number; staying: number; first: HeldCapsule[] }> {
  const found = await sql.query<HeldCapsule & { count: number; staying: number }>(
    `SELECT c.id, c.status, s.stays, COUNT(*) OVER () AS count,
       COUNT(*) FILTER (WHERE s.stays IS NOT NULL OR c.status = ANY($3) OR NOT $4) OVER () AS staying
     FROM hosts h CROSS JOIN LATERAL (
         SELECT * FROM capsules WHERE host = h.name
         UNION ALL SELECT * FROM capsules WHERE host IS NULL AND moving AND last_host = h.name
       ) c CROSS JOIN LATERAL (SELECT CASE
         WHEN c.host IS DISTINCT FROM h.name THEN NULL
         WHEN c.status = 'paused' AND c.blocked_by IS NOT NULL THEN format('its template %s was deleted', c.blocked_by)
         WHEN c.stays_in = h.drains THEN c.stays END AS stays) s
     WHERE h.name = $1 ORDER BY c.id LIMIT $2`,
    [name, most, stayingStatuses, hasBucket],
    { what: "list the capsules of a host" },
  );
  const { count = 0, staying = 0 } = found[0] ?? {};
  return { count, staying, first: found.map(({ id, status, stays }) => ({ id, status, stays })) };
}

/** The host gets new capsules again. Its state; undefined: the cluster has no such host. */
export async function resumeHost(sql: Postgres, name: string): Promise<string | undefined> {
  const what = { what: "let a host take capsules" };
  await sql.query(
    "UPDATE hosts SET state = 'up', drain_until = NULL, gathers = NULL WHERE name = $1 AND state <> 'gone'",
    [name],
    what,
  );
  const [found] = await sql.query<{ state: string }>("SELECT state FROM hosts WHERE name = $1", [name], what);
  return found?.state;
}
