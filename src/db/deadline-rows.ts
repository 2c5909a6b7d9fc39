/** The deadlines of capsules, soonest first: the ends of their lifetimes and retentions. */
import type { StatementSync } from "node:sqlite";
import type { Database } from "./database.ts";

export interface DeadlineRow {
  id: string;
  teamId: string;
  /** Epoch milliseconds. */
  dueAt: number;
}

export interface DueOptions {
  /** Rows of one team. */
  perTeam: number;
  /** Ids that are left out. */
  except: Iterable<string>;
}

const dueQuery = `SELECT id, team_id AS teamId, due_at AS dueAt FROM (
    SELECT id, team_id, due_at, ROW_NUMBER() OVER (PARTITION BY team_id ORDER BY due_at) AS place FROM capsules
    WHERE due_at <= :until AND id NOT IN (SELECT value FROM json_each(:except)))
  WHERE place <= :perTeam ORDER BY due_at`;

export const soonestQuery =
  "SELECT id, team_id AS teamId, due_at AS dueAt FROM capsules WHERE due_at <= ? ORDER BY due_at LIMIT ?";

export class DeadlineRows {
  readonly #soonest: StatementSync;
  readonly #due: StatementSync;

  constructor(database: Database) {
    this.#soonest = database.prepare(soonestQuery);
    this.#due = database.prepare(dueQuery);
  }

  /** The first ones of each team that have passed at `until`, soonest first. Reads all that have passed. */
  due(until: number, { perTeam, except }: DueOptions): DeadlineRow[] {
    const parameters = { until, perTeam, except: JSON.stringify([...except]) };
    return this.#due.all(parameters) as unknown as DeadlineRow[];
  }

  /** Up to `most` until the time `until`. Reads as many entries of an index, however many capsules there are. */
  soonest(most: number, until = Number.MAX_SAFE_INTEGER): DeadlineRow[] {
    return this.#soonest.all(until, most) as unknown as DeadlineRow[];
  }
}
