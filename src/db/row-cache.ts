/**
 * Rows as they were read last, kept as long as nobody has written them: neither this program, which says so, nor another
 * one on the same file, which SQLite tells. Asking SQLite costs half a read, so it is asked once in each turn of the event
 * loop; between two awaits the rows cannot change under our feet anyway.
 */
import type { StatementSync } from "node:sqlite";
import type { Database } from "./database.ts";

const mostRows = 1_000;

export class RowCache<Row extends object> {
  readonly #database: Database;
  readonly #revision: Revision;
  readonly #rows = new Map<string, Row>();
  #seen = -1;

  constructor(database: Database) {
    this.#database = database;
    this.#revision = Revision.of(database);
  }

  /**
   * The row as `read` would give it now. In a transaction it is read, for what that writes may be taken back; and so it is
   * when it is not `isWanted`, so that who asks for what is not theirs learns nothing by the time it takes.
   */
  get(key: string, read: () => Row | undefined, isWanted: (row: Row) => boolean = always): Row | undefined {
    if (this.#database.isTransaction) return read();
    const revision = this.#revision.current();
    if (revision !== this.#seen) this.forgetAll();
    this.#seen = revision;
    const known = this.#rows.get(key);
    if (known !== undefined && isWanted(known)) return known;
    const found = read();
    if (found === undefined || !isWanted(found)) return found;
    const row = Object.freeze({ ...found }); // SQLite's objects are dictionaries, slow to read
    if (this.#rows.size >= mostRows) this.forgetAll();
    this.#rows.set(key, row);
    return row;
  }

  /** This program has written the row. */
  forget(key: string): void {
    this.#rows.delete(key);
  }

  /** This program has written who knows which rows. */
  forgetAll(): void {
    this.#rows.clear();
  }
}

const always = () => true;

/** Of one connection: a number that changes when another connection has committed. */
class Revision {
  static readonly #all = new WeakMap<Database, Revision>();
  readonly #statement: StatementSync;
  #current: number | undefined;

  static of(database: Database): Revision {
    let revision = Revision.#all.get(database);
    if (revision === undefined) {
      revision = new Revision(database.prepare("PRAGMA data_version"));
      Revision.#all.set(database, revision);
    }
    return revision;
  }

  private constructor(statement: StatementSync) {
    statement.setReturnArrays(true); // a quarter less time than an object takes
    this.#statement = statement;
  }

  current(): number {
    if (this.#current === undefined) {
      [this.#current] = this.#statement.get() as unknown as [number];
      // All that arrived before this moment has the same answer.
      setImmediate(() => {
        this.#current = undefined;
      });
    }
    return this.#current;
  }
}
