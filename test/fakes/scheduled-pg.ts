/** The package `pg` without a connection: what is sent goes to a port, whose test decides when it runs and whether it is answered. */
import type pg from "pg";
import { types } from "pg";

export interface SentStatement {
  text: string;
  values: unknown[];
  /** Reads the values of the answer. */
  types: pg.CustomTypesConfig | undefined;
}

export interface StatementPort {
  /** Rejects when no connection can be made. */
  connect(): Promise<void>;
  send(statement: SentStatement): Promise<{ rows: Record<string, unknown>[] }>;
}

export function scheduledPg(port: StatementPort): typeof pg {
  class Connection {
    readonly #types: pg.CustomTypesConfig | undefined;

    constructor(config: pg.ClientConfig) {
      this.#types = config.types;
    }

    async connect(): Promise<unknown> {
      await port.connect();
      return this;
    }

    query(of: string | { text: string; values: unknown[] }, values: unknown[] = []) {
      const sent = typeof of === "string" ? { text: of, values } : { text: of.text, values: of.values };
      return port.send({ ...sent, types: this.#types });
    }

    on(): this {
      return this;
    }

    listeners(): unknown[] {
      return [];
    }

    release(): void {}

    async end(): Promise<void> {}
  }
  return { Client: Connection, Pool: Connection, types } as unknown as typeof pg;
}
