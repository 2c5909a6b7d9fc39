/** The hosts of a cluster as its operator sees them. */
import { setTimeout as delay } from "node:timers/promises";
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
  last_seen_sec: number;
}

/** A host that runs moves its counter each second; a reader without a memory waits for three. */
const watchMs = 3_000;
const what = { what: "list the hosts" };

/** Takes three seconds, in which each host that is up is seen to move. `last_seen_sec` is 0 for those, and that time for others. */
export async function hostSummaries(sql: Postgres, watchedMs = watchMs): Promise<HostSummary[]> {
  const counters = await countersOf(sql);
  await delay(watchedMs);
  const rows = await sql.query<
    Omit<HostSummary, "state" | "last_seen_sec"> & { state: HostSummary["state"]; heartbeat: number }
  >(
    `SELECT h.name, h.state, h.machine, h.version, h.heartbeat, COUNT(c.id) AS held,
       COUNT(c.id) FILTER (WHERE ${liveRow}) AS live,
       COALESCE(SUM(c.memory_mb) FILTER (WHERE ${liveRow}), 0)::bigint AS memory_mb,
       COUNT(c.id) FILTER (WHERE c.status = 'paused' AND c.intent IS NULL) AS backlog
     FROM hosts h LEFT JOIN capsules c ON c.host = h.name GROUP BY h.name ORDER BY h.name`,
    [],
    what,
  );
  return rows.map(({ heartbeat, state, ...row }) => {
    const hasMoved = counters.get(row.name) !== heartbeat;
    const shown = state === "up" && !hasMoved ? "expired" : state;
    return { ...row, state: shown, last_seen_sec: hasMoved ? 0 : Math.ceil(watchedMs / 1_000) };
  });
}

async function countersOf(sql: Postgres): Promise<Map<string, number>> {
  const rows = await sql.query<{ name: string; heartbeat: number }>("SELECT name, heartbeat FROM hosts", [], what);
  return new Map(rows.map(({ name, heartbeat }) => [name, heartbeat]));
}
