/** Points of metrics, means of five minutes each: of capsules, under their id, and of teams, under theirs. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";

export interface MetricRow {
  /** A capsule's id, or a team's. */
  owner: string;
  /** Epoch milliseconds. */
  at: number;
  values: (number | null)[];
}

/** A day of them. */
export const metricsOfOwner = 288;

export class MetricRows {
  readonly #database: Database;
  readonly #add: StatementSync;
  readonly #trim: StatementSync;
  readonly #of: StatementSync;
  readonly #remove: StatementSync;
  readonly #removeOrphans: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#add = database.prepare("INSERT INTO metrics (owner, at, point) VALUES (?, ?, ?)");
    this.#trim = database.prepare(
      `DELETE FROM metrics WHERE owner = :owner AND sequence <= (
         SELECT sequence FROM metrics WHERE owner = :owner ORDER BY sequence DESC LIMIT 1 OFFSET ${metricsOfOwner})`,
    );
    this.#of = database.prepare("SELECT at, point FROM metrics WHERE owner = ? AND at > ? ORDER BY sequence");
    this.#remove = database.prepare("DELETE FROM metrics WHERE owner = ?");
    this.#removeOrphans = database.prepare(
      "DELETE FROM metrics WHERE owner NOT IN (SELECT id FROM capsules) AND owner NOT IN (SELECT id FROM teams)",
    );
  }

  /** In one unsynced commit; the oldest beyond a day's number go. The points of `gone` owners are removed. */
  add(points: readonly MetricRow[], gone: Iterable<string>): void {
    this.#unsynced(() => {
      for (const { owner, at, values } of points) {
        this.#add.run(owner, at, JSON.stringify(values));
        this.#trim.run({ owner });
      }
      for (const owner of gone) this.#remove.run(owner);
    });
  }

  /** The points later than `after`, in the order in which they came. */
  of(owner: string, after: number): Omit<MetricRow, "owner">[] {
    const rows = this.#of.all(owner, after) as { at: number; point: string }[];
    return rows.map(({ at, point }) => ({ at, values: JSON.parse(point) as (number | null)[] }));
  }

  /** Removes the points of capsules and teams that are not there. Reads all owners. */
  removeOrphans(): void {
    this.#unsynced(() => this.#removeOrphans.run());
  }

  #unsynced(work: () => void): void {
    withoutSync(this.#database, () => transact(this.#database, work));
  }
}
