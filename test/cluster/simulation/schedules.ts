/** Schedules, one after the other, in one database. */
import { hash } from "node:crypto";
import { keys } from "../../api.ts";
import { clusterDatabase, type Databases } from "../statements.ts";
import { ScheduledDatabase } from "./database.ts";
import { Folders } from "./folders.ts";
import { liveByLives } from "./life.ts";
import { limits } from "./model.ts";
import { type Mutant, plantFunctions } from "./mutants.ts";
import { simulatedPlace } from "./put-back.ts";
import { World } from "./world.ts";

const shared = {
  capsules_max: limits.capsules,
  running_vcpus_max: limits.runningVcpus,
  templates_max: limits.templates,
};

/** A statement may wait for a lock as long as the schedule wants. */
const patient = `DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE proconfig::text LIKE '%lock_timeout%' LOOP
    EXECUTE format('ALTER FUNCTION %s SET lock_timeout = 0', f);
  END LOOP; END $$`;

const hashOf = (of: "red" | "blue") => hash("sha256", keys[of], "hex");
const shown = ["capsules", "tombstones", "idempotency", "templates", "audit", "keys", "hosts", "teams"];
const emptied = [...shown, "garbage", "assertions", "told_names"];
const empty = `UPDATE cluster SET catalog = 1, timeline = (SELECT timeline FROM simulated.place);
  UPDATE simulated.place SET ms = NULL;
  ${emptied.map((table) => `DELETE FROM ${table};`).join(" ")}
  INSERT INTO teams (id, name, created_at, catalog) VALUES ('team-red', 'red', 1, 1), ('team-blue', 'blue', 1, 1);
  INSERT INTO keys (id, team_id, label, hash, created_at, catalog)
    VALUES ('key-red', 'team-red', 'first', '${hashOf("red")}', 1, 1), ('key-blue', 'team-blue', 'first', '${hashOf("blue")}', 1, 1);`;

export interface Played {
  seed: number;
  violation?: Error;
  trace: string[];
}

export class Schedules implements AsyncDisposable {
  readonly #database: ScheduledDatabase;
  readonly #folders = new Folders();
  readonly #mutant: Mutant | undefined;

  private constructor(database: ScheduledDatabase, mutant: Mutant | undefined) {
    this.#database = database;
    this.#mutant = mutant;
  }

  static async open(server: Databases, mutant?: Mutant): Promise<Schedules> {
    const { url, sql } = await clusterDatabase(server, shared);
    await sql.close();
    const database = await ScheduledDatabase.open(url);
    if (mutant !== undefined) await plantFunctions(database, mutant);
    await database.ask(patient);
    await database.ask(simulatedPlace);
    return new Schedules(database, mutant);
  }

  /** The violation that the schedule of this seed finds, or its trace without one. */
  async play(seed: number): Promise<Played> {
    await this.#database.ask(empty);
    const world = new World(seed, this.#database, this.#folders, this.#mutant);
    try {
      await world.play();
      return { seed, trace: world.scheduler.trace };
    } catch (violation) {
      return { seed, violation: violation as Error, trace: world.scheduler.trace };
    } finally {
      await world.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#database[Symbol.asyncDispose]();
  }
}

/**
 * Plays schedules until one has a violation, which is returned; undefined: none has. `atOnce` of them at a time have a database each: one
 * waits for PostgreSQL while another one goes on.
 */
export async function firstViolation(
  server: Databases,
  seeds: Iterable<number>,
  { mutant, atOnce = 3 }: { mutant?: Mutant; atOnce?: number } = {},
): Promise<Played | undefined> {
  using _ = liveByLives();
  const left = seeds[Symbol.iterator]();
  const found: Played[] = [];
  const play = async () => {
    await using schedules = await Schedules.open(server, mutant);
    for (let next = left.next(); next.done !== true && found.length === 0; next = left.next()) {
      const played = await schedules.play(next.value);
      if (played.violation !== undefined) found.push(played);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, play));
  return found.sort((a, b) => a.seed - b.seed)[0];
}

/** For the message of a failed test. */
export function told({ seed, violation, trace }: Played): string {
  return `CAPSULE_TEST_SEED=${seed}\n${trace.join("\n")}\n${violation?.stack}`;
}
