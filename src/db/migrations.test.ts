/** Files of every earlier schema, with rows in all their tables. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { after, describe, test } from "node:test";
import { AuditRows } from "./audit-rows.ts";
import { CapsuleRows } from "./capsule-rows.ts";
import { openDatabase } from "./database.ts";
import { steps } from "./migrations.ts";
import { TeamRows } from "./team-rows.ts";
import { TemplateRows } from "./template-rows.ts";

type Row = Record<string, SQLInputValue>;

const folder = mkdtempSync(join(tmpdir(), "migrations-"));
after(() => rmSync(folder, { recursive: true }));

/** Tables in an order in which rows may refer to each other. */
function tablesOf(database: DatabaseSync): string[] {
  const query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid";
  return database
    .prepare(query)
    .all()
    .map(({ name }) => String(name));
}

/** A row with a value in every column; with `isSparse`, only where one is required. */
function rowOf(database: DatabaseSync, table: string, isSparse: boolean): Row {
  const row: Row = {};
  for (const { name, type, notnull, pk } of database.prepare(`PRAGMA table_info(${table})`).all()) {
    const column = String(name);
    const isNeeded = notnull === 1 || pk === 1;
    const text = `${column} of ${isSparse ? "sparse" : "full"}`;
    const number = isSparse ? 8 : 7;
    const value = type === "INTEGER" ? number : type === "BLOB" ? Buffer.alloc(32, number) : text;
    row[column] = isSparse && !isNeeded ? null : column === "team_id" ? "id of full" : value;
  }
  return row;
}

/** A file as the program of that schema would have left it, and its rows. */
function makeFile(path: string, schema: number): Map<string, Row[]> {
  const database = new DatabaseSync(path);
  for (const step of steps.slice(0, schema)) database.exec(step);
  database.exec(`PRAGMA user_version = ${schema}`);
  const made = new Map<string, Row[]>();
  for (const table of tablesOf(database)) {
    // The key of a horizon is its team's id, so there is one row of it.
    const rows = (table === "audit_horizons" ? [false] : [false, true]).map((each) => rowOf(database, table, each));
    for (const row of rows) {
      const columns = Object.keys(row);
      const places = columns.map(() => "?").join();
      database.prepare(`INSERT INTO ${table} (${columns}) VALUES (${places})`).run(...Object.values(row));
    }
    made.set(table, rows);
  }
  database.close();
  return made;
}

/** These columns of all rows, by their keys: those with values everywhere come first. */
function rowsIn(database: DatabaseSync, table: string, columns: string[]): Row[] {
  const found = database.prepare(`SELECT ${columns} FROM ${table} ORDER BY 1`).all();
  return found.map((row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, comparable(value)])));
}

function comparable(value: SQLInputValue): SQLInputValue {
  return value instanceof Uint8Array ? Buffer.from(value) : value;
}

describe("a file of an earlier schema opens with all its rows", () => {
  for (const schema of steps.map((_, index) => index + 1)) {
    test(`schema ${schema}`, () => {
      const path = join(folder, `${schema}.db`);
      const made = makeFile(path, schema);
      assert.ok(made.size >= 5, "tables were found");
      for (const opening of ["first", "second"]) {
        const database = openDatabase(path);
        for (const [table, rows] of made) {
          const found = rowsIn(database, table, Object.keys(rows[0]!));
          assert.deepEqual(found, rows, `${table}, ${opening} opening`);
        }
        database.close();
      }
    });
  }

  test("keys of schema 4 belong to no maker; those that expire are of sessions, and what they make does not expire", () => {
    const path = join(folder, "keys.db");
    const made = makeFile(path, 4);
    const database = openDatabase(path);
    const rows = new TeamRows(database);
    const [full, sparse] = made.get("api_keys")!;
    assert.deepEqual([full!.expires_at, sparse!.expires_at], [7, null]);
    database.prepare("UPDATE api_keys SET revoked_at = NULL, expires_at = NULLIF(expires_at * 1000, 0)").run();
    assert.deepEqual({ ...rows.maker(String(full!.id), 1) }, { id: null, expiresAt: null });
    assert.deepEqual({ ...rows.maker(String(sparse!.id), 1) }, { id: sparse!.id, expiresAt: null });
    assert.deepEqual(
      rows.keys().map(({ madeBy }) => madeBy),
      [null, null],
    );
    assert.deepEqual(rows.revoke(String(sparse!.id), 1), [sparse!.id]);
    database.close();
  });

  test("what the services read of schema 1 is what stood there", () => {
    const path = join(folder, "read.db");
    const made = makeFile(path, 1);
    const database = openDatabase(path);
    const ids = (table: string, column = "id") => made.get(table)!.map((row) => row[column]);
    const teams = new TeamRows(database);
    assert.equal(teams.named("name of full")?.id, "id of full");
    assert.deepEqual(
      teams.keys().map(({ id }) => id),
      ids("api_keys"),
    );
    assert.deepEqual(
      new CapsuleRows(database)
        .all()
        .map(({ id }) => id)
        .sort(),
      ids("capsules"),
    );
    assert.deepEqual(
      new TemplateRows(database).all().map(({ storage }) => storage),
      ids("templates", "storage"),
    );
    assert.deepEqual(new AuditRows(database).list("id of full", { limit: 10 }), []);
    database.close();
  });
});

test("a program that reads checkpoints of format 1 only does not open a file that this one has opened", () => {
  const lastSchemaOfFormat1 = 5;
  const path = join(folder, "newer.db");
  makeFile(path, lastSchemaOfFormat1);
  const database = openDatabase(path);
  const { user_version: schema } = database.prepare("PRAGMA user_version").get() as { user_version: number };
  database.close();
  assert.ok(schema > lastSchemaOfFormat1, `schema ${schema}`);
});
