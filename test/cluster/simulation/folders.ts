/** SQLite databases of hosts, in memory. Each is used by one schedule after the other, since its schema takes longer than a schedule. */
import type { StatementSync } from "node:sqlite";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { Unsynced } from "./unsynced.ts";

export interface Folder {
  database: Database;
  unsynced: Unsynced;
}

export class Folders {
  readonly #folders = new Map<string, Folder & { tables: string[] }>();

  /** The database of the host of that name, without rows. */
  empty(name: string): Folder {
    const { database, unsynced, tables } = this.#folders.get(name) ?? this.#make(name);
    database.exec("PRAGMA foreign_keys = OFF");
    for (const table of tables) database.exec(`DELETE FROM ${table}`);
    database.exec("PRAGMA foreign_keys = ON");
    unsynced.forget();
    return { database, unsynced };
  }

  #make(name: string) {
    const opened = openDatabase(":memory:");
    const found = opened.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").all() as { name: string }[];
    const tables = found.map((table) => table.name).filter((table) => !table.startsWith("sqlite_stat"));
    const database = withKeptStatements(opened);
    const made = { database, unsynced: new Unsynced(database, tables), tables };
    this.#folders.set(name, made);
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
