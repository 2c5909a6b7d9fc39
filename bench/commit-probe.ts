/**
 * Marks the commits that wait for the disk. A statement outside a transaction commits by itself, one inside commits with
 * COMMIT; with `PRAGMA synchronous = NORMAL` neither is synced, and neither is marked.
 */
import { DatabaseSync, StatementSync } from "node:sqlite";

interface Connection {
  isSynced: boolean;
  /** Written since BEGIN. */
  tables: Set<string>;
}

const writes = /^\s*(?:INSERT(?: OR \w+)? INTO|UPDATE|DELETE FROM)\s+(\w+)/i;

/** Calls `mark` right before and right after each synced commit, with the tables that it writes. */
export function watchCommits(mark: (what: string) => void): void {
  const connections = new WeakMap<DatabaseSync, Connection>();
  const statements = new WeakMap<StatementSync, { database: DatabaseSync; table: string }>();
  const connectionOf = (database: DatabaseSync) => {
    const known = connections.get(database) ?? { isSynced: true, tables: new Set<string>() };
    connections.set(database, known);
    return known;
  };
  const marked = <T>(tables: Iterable<string>, work: () => T): T => {
    const what = `commit of ${[...tables].sort().join(", ")}`;
    mark(`disk → ${what}`);
    const result = work();
    mark(`disk ← ${what}`);
    return result;
  };

  const { exec, prepare } = DatabaseSync.prototype;
  DatabaseSync.prototype.exec = function (sql) {
    const connection = connectionOf(this);
    const synchronous = /PRAGMA synchronous = (\w+)/i.exec(sql)?.[1];
    if (synchronous !== undefined) connection.isSynced = synchronous.toUpperCase() === "FULL";
    const isEnd = /\b(?:COMMIT|ROLLBACK)\b/i.test(sql);
    const { tables } = connection;
    if (isEnd) connection.tables = new Set();
    if (/\bCOMMIT\b/i.test(sql) && connection.isSynced && tables.size > 0) marked(tables, () => exec.call(this, sql));
    else exec.call(this, sql);
  };
  DatabaseSync.prototype.prepare = function (sql, ...rest) {
    const statement = prepare.call(this, sql, ...rest);
    const table = writes.exec(sql)?.[1];
    if (table !== undefined) statements.set(statement, { database: this, table });
    return statement;
  };
  for (const name of ["run", "get", "all"] as const) {
    const call = StatementSync.prototype[name] as (...parameters: unknown[]) => unknown;
    const probed = function (this: StatementSync, ...parameters: unknown[]) {
      const known = statements.get(this);
      if (known === undefined) return call.apply(this, parameters);
      const connection = connectionOf(known.database);
      if (known.database.isTransaction) connection.tables.add(known.table);
      else if (connection.isSynced) return marked([known.table], () => call.apply(this, parameters));
      return call.apply(this, parameters);
    };
    Object.assign(StatementSync.prototype, { [name]: probed });
  }
}
