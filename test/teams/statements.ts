/** A database that records the statements run, a measure of cost that does not depend on the clock. */
import type { SQLInputValue } from "node:sqlite";
import { type Database, openDatabase } from "../../src/db/database.ts";

export class Statements {
  readonly database: Database = openDatabase(":memory:");
  #run: string[] = [];

  constructor() {
    const { database } = this;
    const [prepare, exec] = [database.prepare.bind(database), database.exec.bind(database)];
    database.prepare = (sql) => {
      const statement = prepare(sql);
      for (const verb of ["get", "all", "run"] as const) {
        const original = statement[verb].bind(statement) as (...values: SQLInputValue[]) => unknown;
        const counted = (...values: SQLInputValue[]) => {
          this.#run.push(sql);
          return original(...values);
        };
        Object.assign(statement, { [verb]: counted });
      }
      return statement;
    };
    database.exec = (sql) => {
      this.#run.push(sql);
      exec(sql);
    };
  }

  /** Statements run since the last call. */
  take(): string[] {
    return this.#run.splice(0);
  }
}
