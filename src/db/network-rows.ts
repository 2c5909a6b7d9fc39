/** The columns of capsule rows that count its connections. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";

export interface NetworkCounts {
  connections: number;
  denied: number;
  bytesOut: number;
  bytesIn: number;
}

export class NetworkRows {
  readonly #database: Database;
  readonly #add: StatementSync;
  readonly #of: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#add = database.prepare(
      `UPDATE capsules SET connections = connections + :connections, connections_denied = connections_denied + :denied,
         bytes_out = bytes_out + :bytesOut, bytes_in = bytes_in + :bytesIn
       WHERE id = :id`,
    );
    this.#of = database.prepare(
      `SELECT connections, connections_denied AS denied, bytes_out AS bytesOut, bytes_in AS bytesIn
       FROM capsules WHERE id = ?`,
    );
  }

  /** Undefined: there is no such capsule. */
  of(id: string): NetworkCounts | undefined {
    return this.#of.get(id) as NetworkCounts | undefined;
  }

  /** In one unsynced commit, without touching revisions. */
  add(counts: Iterable<[id: string, added: NetworkCounts]>): void {
    const write = () => {
      for (const [id, added] of counts) this.#add.run({ id, ...added });
    };
    withoutSync(this.#database, () => transact(this.#database, write));
  }
}
