/** The statements of the database that the frequent changes of a capsule run: each new one is paid for by every request. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { FakeOwnership } from "../../test/fakes/fake-ownership.ts";
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

test("create, exec, pause and resume run these statements and no others, and ask this of the ownership", async () => {
  const statements = new Statements();
  const ownership = new FakeOwnership();
  ownership.isQuick = true;
  const asked = () => ownership.calls.splice(0);
  const service = fakeService({ database: statements.database, ownership });
  const { capsules, team } = service;
  taken(statements);
  const id = await running(service);
  assert.deepEqual(asked(), ["create"]);
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
  assert.deepEqual(asked(), [], "an exec and a pause ask nobody");

  await capsules.resume(team, id);
  await service.settled();
  assert.deepEqual(taken(statements), [row, row, row, ...usage, ...unsynced, row, "UPDATE capsules"]);
  assert.deepEqual(asked(), ["admitResume"]);

  capsules.ping(team, id);
  await capsules.use(team, id, "files", () => {});
  await capsules.update(team, id, { labels: { a: "b" }, timeoutSec: 5 });
  await capsules.stop(team, id);
  assert.deepEqual(asked(), [], "nor does what keeps the capsule here, by its name");
  await capsules.start(team, id);
  await capsules.update(team, id, { name: "web" });
  await capsules.destroy(team, id);
  assert.deepEqual(asked(), ["admitResume", "rename", "destroy"]);
});

test("a start clears interrupted resumes and starts, and records lost capsules, without a sync for each", async () => {
  const statements = new Statements();
  const host = new FakeHost();
  const before = fakeService({ host, database: statements.database });
  const { capsules, store, team } = before;
  const interrupted = (intent: "resume" | "start") => async () => {
    const id = await running(before);
    await (intent === "resume" ? capsules.pause(team, id) : capsules.stop(team, id));
    await before.settled();
    store.setIntentUnsynced(store.require(team, id), intent);
    return id;
  };
  const left = [interrupted("resume"), interrupted("start"), () => running(before)];
  const ids: string[] = [];
  for (const leave of [...left, ...left]) ids.push(await leave());
  host.guests.clear();
  const after = fakeService({ host, database: statements.database });
  taken(statements);
  await after.recover();
  const rows = ids.map((id) => after.store.require(team, id));
  const settled = ["paused", "stopped", "error"];
  assert.deepEqual(
    rows.map(({ status, intent }) => [status, intent]),
    [...settled, ...settled].map((status) => [status, null]),
  );
  let isSynced = true;
  let synced = 0;
  for (const sql of taken(statements)) {
    if (sql.startsWith("PRAGMA synchronous")) isSynced = sql.endsWith("FULL");
    else if (isSynced && /^(COMMIT|UPDATE|INSERT|DELETE)/.test(sql)) synced++;
  }
  assert.equal(synced, 0);
});

test("requests that wait for one status share the row that the change has written", async () => {
  const statements = new Statements();
  const service = fakeService({ database: statements.database });
  const { capsules, store, team } = service;
  const { signal } = new AbortController();
  const statementsFor = async (count: number) => {
    const id = await running(service);
    const waits = Array.from({ length: count }, () => capsules.wait(team, id, "paused", 60_000, signal));
    taken(statements);
    store.commit(store.require(team, id), "pause");
    const views = (await Promise.all(waits)).map((view) => view().status);
    assert.deepEqual(new Set(views), new Set(["paused"]));
    return taken(statements);
  };
  assert.deepEqual(await statementsFor(20), [row, "UPDATE capsules"]);
});
