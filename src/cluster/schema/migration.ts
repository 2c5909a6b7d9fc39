/**
 * The cluster's schema as a list of steps, which only add: hosts of two releases work on one database while one after the other is
 * upgraded. `cluster.schema` is the number of steps that a database has run; `cluster.schema_min`, which programs may work on it.
 */
import type { Transaction } from "../postgres.ts";
import { artifacts } from "./artifacts.ts";
import { capsuleFunctions } from "./capsule-functions.ts";
import { catalogFunctions } from "./catalog-functions.ts";
import { drains } from "./drains.ts";
import { endedCluster } from "./ended-cluster.ts";
import { indexedScans } from "./indexed-scans.ts";
import { leftHosts } from "./left-hosts.ts";
import { listedPlaces } from "./listed-places.ts";
import { goneHosts, goneLost, lostHosts } from "./lost-hosts.ts";
import { moves } from "./moves.ts";
import { notedStays } from "./noted-stays.ts";
import { putBack } from "./put-back.ts";
import { putBackMoves } from "./put-back-moves.ts";
import { putBackReleases } from "./put-back-releases.ts";
import { releasedCapsules } from "./released-capsules.ts";
import { restoredDumps } from "./restored-dumps.ts";
import { seenHosts } from "./seen-hosts.ts";
import { shownChanges } from "./shown-changes.ts";
import { tables } from "./tables.ts";
import { decidedNames, toldNames } from "./told-names.ts";
import { upkeep } from "./upkeep.ts";
import { versionMinimum } from "./version-minimum.ts";

export const steps: readonly string[] = [
  `${tables}${capsuleFunctions}${catalogFunctions}`,
  shownChanges,
  lostHosts,
  releasedCapsules,
  goneHosts,
  artifacts,
  upkeep,
  putBack,
  drains,
  listedPlaces,
  versionMinimum,
  putBackReleases,
  moves,
  notedStays,
  putBackMoves,
  leftHosts,
  indexedScans,
  restoredDumps,
  seenHosts,
  endedCluster,
  toldNames,
  goneLost,
  decidedNames,
];

/** The oldest program whose statements work on this schema, by its own number of steps. */
export const schemaMin = 1;

/** Any number; the same in every program. */
const lockNumber = 7_301_640_112;

export type Statements = Pick<Transaction, "query">;

export interface NewCluster {
  id: string;
  limits: Readonly<Record<string, number>>;
}

/** Where a database stands; undefined: it has no tables of a cluster. */
export async function schemaOf(
  sql: Statements,
): Promise<{ id: string; schema: number; schemaMin: number } | undefined> {
  const { rows: found } = await sql.query("SELECT to_regclass('cluster') IS NOT NULL AS there");
  if (found[0]?.there !== true) return undefined;
  const { rows } = await sql.query("SELECT id, schema, schema_min FROM cluster");
  const [row] = rows;
  if (row === undefined) return undefined;
  return { id: String(row.id), schema: Number(row.schema), schemaMin: Number(row.schema_min) };
}

/** Makes the tables of a new cluster. Call it in a transaction. Throws when the database has them already. */
export async function createSchema(sql: Transaction, { id, limits }: NewCluster): Promise<void> {
  await sql.query("SELECT pg_advisory_xact_lock($1)", [lockNumber]);
  if ((await schemaOf(sql)) !== undefined) throw new Error("the database has the tables of a cluster already");
  for (const step of steps) await sql.alter(step);
  await sql.query(
    `INSERT INTO cluster (id, schema, schema_min, system_id, timeline, limits, created_at)
     VALUES ($1, $2, $3, split_part(database_place(), '/', 1), split_part(database_place(), '/', 2), $4, now_ms())`,
    [id, steps.length, schemaMin, JSON.stringify(limits)],
  );
}

/**
 * Runs the steps that the database lacks. Call it in a transaction. Throws when the database is of another cluster, or of a release
 * that this program is too old for.
 */
export async function migrate(sql: Transaction, id: string): Promise<void> {
  await sql.query("SELECT pg_advisory_xact_lock($1)", [lockNumber]);
  const found = await schemaOf(sql);
  if (found === undefined) throw new Error("the database has no cluster; run capsule admin cluster init");
  if (found.id !== id) throw new Error("the database belongs to another cluster than the cluster file");
  if (steps.length < found.schemaMin)
    throw new Error(
      `the database needs a program of schema ${found.schemaMin}; this one has ${steps.length}: upgrade it`,
    );
  if (found.schema >= steps.length) return;
  for (const step of steps.slice(found.schema)) await sql.alter(step);
  await sql.query("UPDATE cluster SET schema = $1, schema_min = GREATEST(schema_min, $2)", [steps.length, schemaMin]);
}
