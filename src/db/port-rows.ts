/** The columns of capsule rows that say who may reach a capsule's ports. */
import type { StatementSync } from "node:sqlite";
import type { Database } from "./database.ts";

export interface PortAccessRow {
  teamId: string;
  /** As in CapsuleRow. */
  network: string | null;
  /** null: none was made yet. */
  secret: Uint8Array | null;
}

export class PortRows {
  readonly #access: StatementSync;
  readonly #makeSecret: StatementSync;
  readonly #renewSecret: StatementSync;

  constructor(database: Database) {
    this.#access = database.prepare(
      `SELECT team_id AS teamId, network, port_secret AS secret
       FROM capsules WHERE id = ? AND intent IS NOT 'destroy'`,
    );
    this.#makeSecret = database.prepare("UPDATE capsules SET port_secret = ? WHERE id = ? AND port_secret IS NULL");
    this.#renewSecret = database.prepare("UPDATE capsules SET port_secret = ? WHERE id = ?");
  }

  /** Undefined: there is no such capsule, or it is being destroyed. */
  access(id: string): PortAccessRow | undefined {
    return this.#access.get(id) as PortAccessRow | undefined;
  }

  /** Sets the secret of a capsule that has none. */
  makeSecret(id: string, secret: Uint8Array): void {
    this.#makeSecret.run(secret, id);
  }

  renewSecret(id: string, secret: Uint8Array): void {
    this.#renewSecret.run(secret, id);
  }
}
