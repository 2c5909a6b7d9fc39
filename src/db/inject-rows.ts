/** The column of capsule rows that has the sealed values of injected headers. */
import type { StatementSync } from "node:sqlite";
import type { Database } from "./database.ts";

export class InjectRows {
  readonly #get: StatementSync;
  readonly #set: StatementSync;

  constructor(database: Database) {
    this.#get = database.prepare("SELECT inject FROM capsules WHERE id = ?");
    this.#set = database.prepare("UPDATE capsules SET inject = ? WHERE id = ?");
  }

  /** null: none, or there is no such capsule. */
  get(id: string): string | null {
    return (this.#get.get(id) as { inject: string | null } | undefined)?.inject ?? null;
  }

  set(id: string, sealed: string | null): void {
    this.#set.run(sealed, id);
  }
}
