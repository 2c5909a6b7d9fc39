/** Opening the database file while other processes do. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { CapsuleRows } from "./capsule-rows.ts";
import { openDatabase, transact, withoutSync } from "./database.ts";
import { TeamRows } from "./team-rows.ts";

const openers = 3;
const rounds = 8;

/** Opens and closes the file of each line it reads; answers with a line. */
const script = `
  import { createInterface } from "node:readline";
  import { openDatabase } from ${JSON.stringify(join(import.meta.dirname, "database.ts"))};
  for await (const path of createInterface({ input: process.stdin })) {
    try { openDatabase(path).close(); console.log("ok"); } catch (error) { console.log(error.message); }
  }`;

function opener(): ChildProcess {
  return spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: ["pipe", "pipe", "inherit"] });
}

async function opens(child: ChildProcess, path: string): Promise<string> {
  child.stdin?.write(`${path}\n`);
  const [said] = await once(child.stdout!, "data");
  return String(said).trim();
}

test("processes can open a new file at once, and open it while another closes it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "database-"));
  const children = Array.from({ length: openers }, opener);
  try {
    for (let round = 0; round < rounds; round++) {
      const path = join(folder, `${round >> 1}.db`); // new, and then once more
      const said = await Promise.all(children.map((child) => opens(child, path)));
      assert.deepEqual(said, Array(openers).fill("ok"), `round ${round}`);
    }
  } finally {
    for (const child of children) child.stdin?.end();
    await rm(folder, { recursive: true });
  }
});

test("a file of a newer release is refused and not changed", async () => {
  const folder = await mkdtemp(join(tmpdir(), "database-"));
  try {
    const path = join(folder, "newer.db");
    const database = openDatabase(path);
    database.exec("PRAGMA user_version = 1000");
    database.close();
    assert.throws(() => openDatabase(path), /schema 1000; this program knows only/);
    assert.throws(() => openDatabase(path), /schema 1000/, "the first refusal left no lock behind");
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a transaction on a full disk throws, is rolled back, and leaves no transaction open", () => {
  const database = openDatabase(":memory:");
  database.exec("CREATE TABLE notes (text TEXT); PRAGMA cache_size = 5; PRAGMA max_page_count = 60");
  const insert = database.prepare("INSERT INTO notes VALUES (?)");
  const fill = () => {
    for (let i = 0; i < 200; i++) insert.run("x".repeat(4_000));
  };
  assert.throws(() => transact(database, fill), /database or disk is full/);
  transact(database, () => insert.run("little"));
  assert.equal((database.prepare("SELECT COUNT(*) AS count FROM notes").get() as { count: number }).count, 1);
  database.close();
});

test("withoutSync commits without a sync, and later commits sync again", () => {
  const database = openDatabase(":memory:");
  const level = () => (database.prepare("PRAGMA synchronous").get() as { synchronous: number }).synchronous;
  const [normal, full] = [1, 2];
  assert.equal(withoutSync(database, level), normal);
  assert.equal(level(), full);
  const fail = () => {
    throw new Error("not written");
  };
  assert.throws(() => withoutSync(database, fail), /not written/);
  assert.equal(level(), full);
  database.close();
});

test("times of last use are committed without a sync", (t) => {
  const database = openDatabase(":memory:");
  const exec = database.exec.bind(database);
  const levels: unknown[] = [];
  t.mock.method(database, "exec", (sql: string) => {
    if (sql === "COMMIT") levels.push(database.prepare("PRAGMA synchronous").get());
    exec(sql);
  });
  new TeamRows(database).noteUsed([["key-1", 1]]);
  new CapsuleRows(database).noteActive([["cl-1", 1]]);
  assert.deepEqual(
    levels.map((level) => ({ ...(level as object) })),
    [{ synchronous: 1 }, { synchronous: 1 }],
  );
  database.close();
});
