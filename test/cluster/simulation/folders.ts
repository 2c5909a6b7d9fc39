/** SQLite databases of hosts, in memory. Each is used by one schedule after the other, since its schema takes longer than a schedule. */
import type { StatementSync } from "node:sqlite";
import { type Database, openDatabase } from "../../../src/db/database.ts";

export class Folders {
  readonly #databases = new Map<string, { database: Database; tables: string[] }>();

  /** The database of the host of that name, without rows. */
  empty(name: string): Database {
    const { database, tables } = this.#databases.get(name) ?? this.#make(name);
    database.exec("PRAGMA foreign_keys = OFF");
    for (const table of tables) database.exec(`DELETE FROM ${table}`);
    database.exec("PRAGMA foreign_keys = ON");
    return database;
  }

  #make(name: string) {
    const database = openDatabase(":memory:");
    const found = database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").all() as { name: string }[];
    const tables = found.map((table) => table.name).filter((table) => !table.startsWith("sqlite_stat"));
    const made = { database: withKeptStatements(database), tables };
    this.#databases.set(name, made);
    return made;
  }
}

/** A statement is prepared once: a daemon's start prepares some 140. */
function withKeptStatements(database: Database): Database {
  const kept = new Map<string, StatementSync>();
  const prepare = database.prepare.bind(database);
  database.prepare = (text, ...of) => {
    const statement = kept.get(text) ?? prepare(text, ...of);
    kept.set(text, statement);
    return statement;
  };
  return database;
}
