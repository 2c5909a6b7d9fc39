/** The statements of the database that the frequent changes of a capsule run: each new one is paid for by every request. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { beginExec, fakeService, running } from "../../test/fakes/fake-service.ts";
import { Statements } from "../../test/teams/statements.ts";

/** The statements since the last call, by verb and table. */
function taken(statements: Statements): string[] {
  return statements.take().map((sql) => {
    const table = /\b(?:INTO|FROM|^UPDATE) (capsules|templates|tombstones|\w+)/.exec(
      sql.replace(/FROM json_each/g, ""),
    )?.[1];
    return sql.startsWith("PRAGMA") || table === undefined ? sql : `${sql.split(" ", 1)[0]} ${table}`;
  });
}

const row = "SELECT capsules";
const usage = ["SELECT templates", row, row];
const unsynced = ["PRAGMA synchronous = NORMAL", "UPDATE capsules", "PRAGMA synchronous = FULL"];

test("create, exec, pause and resume run these statements and no others", async () => {
  const statements = new Statements();
  const service = fakeService({ database: statements.database });
  const { capsules, team } = service;
  taken(statements);
  const id = await running(service);
  const insert = ["BEGIN IMMEDIATE", row, "SELECT tombstones", "INSERT capsules", "COMMIT"];
  assert.deepEqual(taken(statements), [
    "SELECT templates",
    "SELECT templates",
    ...usage,
    ...insert,
    row,
    "UPDATE capsules",
  ]);

  for (const envs of [[row], []]) {
    await beginExec(service, id)();
    assert.deepEqual(taken(statements), [row, ...envs], "envs are read once in a run");
  }

  await capsules.pause(team, id);
  await service.settled();
  assert.deepEqual(taken(statements), [row, ...unsynced, row, ...usage, "UPDATE capsules"]);

  await capsules.resume(team, id);
  await service.settled();
  assert.deepEqual(taken(statements), [row, row, row, ...usage, ...unsynced, row, "UPDATE capsules"]);
});
