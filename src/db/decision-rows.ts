/** The last decisions about the connections of running capsules, a JSON array for each. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";

export interface WrittenDecisions {
  id: string;
  /** That of the capsule's row: another run has another one. */
  startedAt: number;
  /** Undefined: the row is removed. */
  decisions: string | undefined;
}

export class DecisionRows {
  readonly #database: Database;
  readonly #of: StatementSync;
  readonly #put: StatementSync;
  readonly #remove: StatementSync;
  readonly #removeEnded: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#of = database.prepare("SELECT decisions FROM network_decisions WHERE capsule_id = ? AND started_at = ?");
    this.#put = database.prepare(
      `INSERT INTO network_decisions (capsule_id, started_at, decisions) VALUES (:id, :startedAt, :decisions)
       ON CONFLICT (capsule_id) DO UPDATE SET started_at = excluded.started_at, decisions = excluded.decisions`,
    );
    this.#remove = database.prepare("DELETE FROM network_decisions WHERE capsule_id = ?");
    this.#removeEnded = database.prepare(
      `DELETE FROM network_decisions WHERE NOT EXISTS (
         SELECT 1 FROM capsules
         WHERE id = capsule_id AND status = 'running' AND capsules.started_at = network_decisions.started_at)`,
    );
  }

  /** The decisions of the run that has started then. */
  of(id: string, startedAt: number): string | undefined {
    return this.#of.get(id, startedAt)?.decisions as string | undefined;
  }

  /** In one unsynced commit. */
  write(part: readonly WrittenDecisions[]): void {
    const write = () => {
      for (const { id, startedAt, decisions } of part) {
        if (decisions === undefined) this.#remove.run(id);
        else this.#put.run({ id, startedAt, decisions });
      }
    };
    withoutSync(this.#database, () => transact(this.#database, write));
  }

  /** Removes those of runs that have ended. */
  removeEnded(): void {
    withoutSync(this.#database, () => this.#removeEnded.run());
  }
}
