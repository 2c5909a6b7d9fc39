/** Answers that are kept for requests with an Idempotency-Key. */
import type { StatementSync } from "node:sqlite";
import { type Database, withoutSync } from "./database.ts";

/** Two requests with the same team, path and key are the same one. */
export interface IdempotencyId {
  teamId: string;
  /** Path of the request, without its query. */
  route: string;
  key: string;
}

export interface IdempotencyRow extends IdempotencyId {
  bodyHash: string;
  status: number;
  /** The answer's body, as it was sent. */
  answer: string;
  /** Epoch milliseconds. */
  keptAt: number;
}

/** The number of a team's rows that there were up to one, and the bytes of their answers. */
interface Place {
  sequence: number;
  endsAt: number;
}

/** Some milliseconds of the server's time. */
const forgottenAtOnce = 5_000;

export class IdempotencyRows {
  readonly #database: Database;
  readonly #get: StatementSync;
  readonly #insert: StatementSync;
  readonly #oldest: StatementSync;
  readonly #removeAt: StatementSync;
  readonly #replace: StatementSync;
  readonly #remove: StatementSync;
  readonly #forget: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    const same = "team_id = :teamId AND route = :route AND key = :key";
    this.#get = database.prepare(
      `SELECT team_id AS teamId, route, key, body_hash AS bodyHash, status, answer, kept_at AS keptAt
       FROM idempotency WHERE ${same}`,
    );
    this.#insert = database.prepare(
      `INSERT OR REPLACE INTO idempotency (team_id, route, key, body_hash, status, answer, kept_at, sequence, ends_at)
       VALUES (:teamId, :route, :key, :bodyHash, :status, :answer, :keptAt,
         (SELECT COALESCE(MAX(sequence), 0) + 1 FROM idempotency WHERE team_id = :teamId),
         length(CAST(:answer AS BLOB)) + COALESCE(
           (SELECT ends_at FROM idempotency WHERE team_id = :teamId ORDER BY sequence DESC LIMIT 1), 0))
       RETURNING sequence, ends_at AS endsAt`,
    );
    this.#oldest = database.prepare(
      "SELECT sequence, ends_at AS endsAt FROM idempotency WHERE team_id = ? ORDER BY sequence LIMIT 1",
    );
    this.#removeAt = database.prepare("DELETE FROM idempotency WHERE team_id = ? AND sequence = ?");
    this.#replace = database.prepare(`UPDATE idempotency SET answer = :answer WHERE ${same}`);
    this.#remove = database.prepare(`DELETE FROM idempotency WHERE ${same}`);
    this.#forget = database.prepare(
      `DELETE FROM idempotency WHERE rowid IN (
         SELECT rowid FROM idempotency WHERE kept_at < ? ORDER BY kept_at LIMIT ${forgottenAtOnce})`,
    );
  }

  get({ teamId, route, key }: IdempotencyId): IdempotencyRow | undefined {
    return this.#get.get({ teamId, route, key }) as IdempotencyRow | undefined;
  }

  /** Inserts the row, or replaces an older one of its key; the team's oldest go where they are more than `most`. */
  keep(row: IdempotencyRow, most: { rows: number; bytes: number }): void {
    const newest = this.#insert.get({ ...row }) as unknown as Place;
    for (;;) {
      const oldest = this.#oldest.get(row.teamId) as unknown as Place;
      const isWithin = newest.sequence - oldest.sequence < most.rows && newest.endsAt - oldest.endsAt < most.bytes;
      if (isWithin) return;
      this.#removeAt.run(row.teamId, oldest.sequence);
    }
  }

  /** In an unsynced commit: after a power cut the answer before it is there. */
  replace({ teamId, route, key }: IdempotencyId, answer: string): void {
    withoutSync(this.#database, () => this.#replace.run({ teamId, route, key, answer }));
  }

  remove({ teamId, route, key }: IdempotencyId): void {
    this.#remove.run({ teamId, route, key });
  }

  /** Removes rows from before `beforeMs` in one unsynced commit, a bounded number. */
  forget(beforeMs: number): void {
    withoutSync(this.#database, () => this.#forget.run(beforeMs));
  }
}
