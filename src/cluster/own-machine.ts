/** The machine of this host's VMs in PostgreSQL, for its operator: told after a start, and when another QEMU is installed. */
import type { Log } from "../log.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { jsonOf } from "./rows.ts";

export interface OwnMachineOptions {
  sql: Pick<Postgres, "query" | "isAway">;
  me: Pick<Me, "name" | "epoch">;
  machine: () => Readonly<Record<string, unknown>>;
  log: Log;
}

export class OwnMachine {
  readonly #options: OwnMachineOptions;
  /** As a join leaves the row. */
  #told = "{}";

  constructor(options: OwnMachineOptions) {
    this.#options = options;
  }

  /** Call it after each answered heartbeat: it sends nothing unless there is news. Never rejects. */
  async tell(): Promise<void> {
    const { sql, me, machine, log } = this.#options;
    const text = jsonOf(machine());
    if (text === this.#told) return;
    try {
      const what = "tell of this host's machine";
      const values = [text, me.name, me.epoch];
      await sql.query("UPDATE hosts SET machine = $1 WHERE name = $2 AND epoch = $3", values, { what });
      this.#told = text;
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "this host's machine could not be told to the cluster");
    }
  }
}
