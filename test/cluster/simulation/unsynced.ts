/**
 * Commits of a host's database that are not synced. A power cut may take those since the last synced one, and never any before it: the
 * tables are kept as they were when the first of them began.
 */
import type { Database } from "../../../src/db/database.ts";

interface Table {
  name: string;
  columns: string;
  marks: string;
}

type Row = Record<string, string | number | bigint | null | Uint8Array>;

export class Unsynced {
  readonly #database: Database;
  readonly #tables: Table[];
  readonly #changes: () => number;
  /** The tables before the first unsynced commit, and the number of changes behind the last one. */
  #before: { rows: Row[][]; changes: number } | undefined;
  isFollowing = false;

  constructor(database: Database, tables: readonly string[]) {
    this.#database = database;
    this.#tables = tables.map((name) => {
      const columns = database.prepare(`PRAGMA table_info(${name})`).all() as { name: string }[]; // but for generated ones
      const names = columns.map((column) => column.name);
      return { name, columns: names.join(", "), marks: names.map((column) => `:${column}`).join(", ") };
    });
    const changes = database.prepare("SELECT total_changes() AS count");
    this.#changes = () => (changes.get() as { count: number }).count;
    const exec = database.exec.bind(database);
    database.exec = (text) => {
      if (this.isFollowing && text === "PRAGMA synchronous = NORMAL") this.#begin();
      exec(text);
      if (this.isFollowing && text === "PRAGMA synchronous = FULL") this.#end();
    };
  }

  forget(): void {
    this.#before = undefined;
  }

  /** Whether a power cut now may take something. */
  get hasAny(): boolean {
    return this.#before !== undefined && this.#before.changes === this.#changes();
  }

  /** The tables are again as the last synced commit has left them. */
  drop(): void {
    const { rows } = this.#before!;
    this.#before = undefined;
    this.#database.exec("PRAGMA foreign_keys = OFF; BEGIN");
    for (const [index, { name, columns, marks }] of this.#tables.entries()) {
      this.#database.exec(`DELETE FROM ${name}`);
      const insert = this.#database.prepare(`INSERT INTO ${name} (${columns}) VALUES (${marks})`);
      for (const row of rows[index]!) insert.run(row);
    }
    this.#database.exec("COMMIT; PRAGMA foreign_keys = ON");
  }

  #begin(): void {
    if (this.#before !== undefined && !this.hasAny) this.#before = undefined;
    this.#before ??= { rows: this.#tables.map((table) => this.#rows(table)), changes: this.#changes() };
  }

  #end(): void {
    if (this.#before !== undefined) this.#before.changes = this.#changes();
  }

  #rows({ name, columns }: Table): Row[] {
    return this.#database.prepare(`SELECT ${columns} FROM ${name}`).all() as Row[];
  }
}
