/** A cluster's schema in a database of its own, with a team and hosts, and rows as hosts send them. */
import { Postgres } from "../../src/cluster/postgres.ts";
import { columnsOf } from "../../src/cluster/rows.ts";
import { createSchema } from "../../src/cluster/schema/migration.ts";
import type { CapsuleRow } from "../../src/db/capsule-rows.ts";
import type { PostgresServer } from "./postgres-server.ts";

export const roomyLimits = {
  capsules_max: 1_000_000,
  running_vcpus_max: 1_000_000,
  running_memory_max_mb: 1_000_000_000,
  templates_max: 1_000,
};
export const about = { what: "test" };
export const clusterId = "0123456789abcdef";

export interface ClusterDatabase extends AsyncDisposable {
  url: string;
  sql: Postgres;
}

/** Makes databases, by their URLs. */
export type Databases = Pick<PostgresServer, "newDatabase">;

export const ticks = () => performance.now();
/** A busy machine decides nothing by its time: for connections to a database that is there. */
export const slowness = 30;
export const patient = { ticks, slowness: () => slowness };

/** With team-blue, and hosts a, b and c of epoch 1. */
export async function clusterDatabase(server: Databases, limits = {}): Promise<ClusterDatabase> {
  const url = server.newDatabase();
  const sql = await Postgres.open({ url, ...patient });
  await sql.transact((each) => createSchema(each, { id: clusterId, limits: { ...roomyLimits, ...limits } }));
  await sql.call("ensure_team", ["team-blue", "blue", 1], about);
  for (const name of ["a", "b", "c"]) await sql.call("join_host", joining(name), about);
  return { url, sql, [Symbol.asyncDispose]: () => sql.close() };
}

export function joining(name: string, { nonce = `nonce-${name}`, place = `place-${name}`, known = 0 } = {}): unknown[] {
  return [name, nonce, place, known, "127.0.0.1", 8_079, "0.0.0", 2, {}];
}

export function creating(host: string, row: CapsuleRow, { copy = 1, keyed = null as object | null } = {}): unknown[] {
  return [JSON.stringify(columnsOf(row)), host, 1, copy, keyed === null ? null : JSON.stringify(keyed)];
}
