/**
 * A database that is put back: all its tables are again as a backup has them, on another timeline. Later commits are forgotten, until the
 * hosts have told of them, and the operator, which has a life of its own, confirms the place.
 */
import { confirmPlace } from "../../../src/cluster/put-back.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import { openSql } from "./host.ts";
import { Life } from "./life.ts";
import type { World } from "./world.ts";

interface Backup {
  tables: Record<string, string>;
  sequence: string;
}

/** In place of PostgreSQL's own, which a restart of the whole server would have to change; and a clock for schedules that have one. */
export const simulatedPlace = `
  CREATE SCHEMA simulated;
  CREATE TABLE simulated.place (timeline integer NOT NULL, ms bigint);
  INSERT INTO simulated.place VALUES (1);
  CREATE OR REPLACE FUNCTION database_place() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT 'simulated/' || timeline FROM simulated.place
  $$;
  CREATE OR REPLACE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT COALESCE(ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM simulated.place
  $$;
  UPDATE cluster SET system_id = 'simulated', timeline = '1'`;

const tablesOf = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1";
const confirmationsMax = 20;

export class PutBack {
  /** Other schedules have a database that forgets nothing. */
  readonly isPlayed: boolean;
  /** The number of times so far. */
  count = 0;
  /** Prefixes that it knew as garbage, and has forgotten. */
  readonly forgotten = new Set<string>();
  /** Releases and acquires since the backup. */
  moves = 0;
  readonly #world: World;
  #backup: Backup | undefined;
  #tables: string[] = [];
  #operator: Life | undefined;

  constructor(world: World, isPlayed: boolean) {
    this.#world = world;
    this.isPlayed = isPlayed;
  }

  /** Something that may happen in a step, with its weight. Most databases forget a release or an acquire. */
  steps(): [number, () => unknown][] {
    const { checks, broken } = this.#world;
    if (!this.isPlayed) return [];
    const isKept = this.#backup !== undefined;
    if (checks.isOwnPlace && !isKept) return [[1, () => this.save()]];
    if (checks.isOwnPlace) return [[this.moves > 0 ? 0.5 : 0.05, () => this.putBack()]];
    return [
      [0.5, () => void this.confirm().catch(broken)],
      [isKept ? 0.02 : 0, () => this.putBack()],
    ];
  }

  /** The returned function, called at the end of a request, says whether the database was its cluster's all the time since now. */
  watch(): () => boolean {
    const { checks } = this.#world;
    const began = checks.isOwnPlace ? this.count : undefined;
    return () => checks.isOwnPlace && this.count === began;
  }

  async save(): Promise<void> {
    const { database, scheduler } = this.#world;
    scheduler.note("the database is backed up");
    this.#tables = (await database.ask<{ name: string }>(tablesOf)).map(({ name }) => name);
    const columns = this.#tables.map(
      (name) => `(SELECT COALESCE(json_agg(t), '[]') FROM ${name} t)::text AS "${name}"`,
    );
    const [tables] = await database.ask<Record<string, string>>(`SELECT ${columns.join(", ")}`);
    const [sequence] = await database.ask<{ last: string }>("SELECT last_value::text AS last FROM capsules_seq_seq");
    this.#backup = { tables: tables!, sequence: sequence!.last };
    this.moves = 0;
  }

  /** Its place is confirmed, or the bucket may lack by now what the backup names. */
  forget(): void {
    this.#backup = undefined;
  }

  /** The server ends, and a later one goes on from the backup: no statement that was sent to the former is executed any more. */
  async putBack(): Promise<void> {
    const { database, scheduler, statements, checks, model } = this.#world;
    const { tables, sequence } = this.#backup!;
    await statements.crash();
    statements.dropLate();
    for (const { prefix } of checks.now.garbage) this.forgotten.add(prefix);
    scheduler.note("the database is put back");
    this.count += 1;
    await database.ask("BEGIN; SET LOCAL session_replication_role = replica");
    for (const name of this.#tables) {
      await database.ask(`DELETE FROM ${name}`);
      await database.ask(`INSERT INTO ${name} SELECT * FROM json_populate_recordset(NULL::${name}, $1)`, [
        tables[name],
      ]);
    }
    await database.ask("SELECT setval('capsules_seq_seq', $1)", [sequence]);
    await database.ask("UPDATE simulated.place SET timeline = timeline + 1; COMMIT");
    model.forgetKeys();
    checks.hasForgotten();
  }

  /** The operator asks for it, or waits a second for the answer. */
  async confirm(): Promise<void> {
    if (this.#operator !== undefined) return this.#operator.advance(1_000);
    const { scheduler, seedOfLife } = this.#world;
    const life = new Life("operator", this.count, seedOfLife());
    this.#operator = life;
    const sql = openSql(this.#world, life);
    try {
      const { was, silent } = await life.run(() => confirmPlace(sql));
      scheduler.note(`operator: ${was} ${silent.join()}`);
      if (was !== "other") this.forget();
    } catch (error) {
      if (!(error instanceof CapsuleError) || error.code !== "unavailable") throw error;
    } finally {
      this.#operator = undefined;
    }
  }

  /** `second`: a second passes for all hosts, in which they tell. */
  async atEnd(second: () => Promise<void>): Promise<void> {
    const { checks, violated, broken } = this.#world;
    for (let rounds = 0; !checks.now.isOwnPlace; rounds++) {
      if (rounds === confirmationsMax) violated("the place of the database is never confirmed");
      this.confirm().catch(broken);
      await second();
    }
  }
}
