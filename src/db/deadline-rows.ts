/** The deadlines of capsules, soonest first: the ends of their lifetimes and retentions. */
import type { StatementSync } from "node:sqlite";
import type { Database } from "./database.ts";

export interface DeadlineRow {
  id: string;
  /** Epoch milliseconds. */
  dueAt: number;
}

export const soonestQuery = "SELECT id, due_at AS dueAt FROM capsules WHERE due_at <= ? ORDER BY due_at LIMIT ?";

export class DeadlineRows {
  readonly #soonest: StatementSync;

  constructor(database: Database) {
    this.#soonest = database.prepare(soonestQuery);
  }

  /** Up to `most` until the time `until`. Reads as many entries of an index, however many capsules there are. */
  soonest(most: number, until = Number.MAX_SAFE_INTEGER): DeadlineRow[] {
    return this.#soonest.all(until, most) as unknown as DeadlineRow[];
  }
}
