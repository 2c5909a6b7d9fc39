import assert from "node:assert/strict";
import { test } from "node:test";
import { inNewDataFolder } from "../../test/data-folder.ts";
import { printed } from "../../test/printed.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { Teams } from "../teams/teams.ts";
import { listKeys, revokeKey } from "./keys.ts";

test("keys list says which keys are live, revoked and expired", async (t) => {
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    const team = teams.ensure("blue").id;
    const lives = { endless: null, lasting: 60_000, over: -1, ended: null };
    const ids = Object.entries(lives).map(([name, lifeMs]) => teams.createKey(team, name, undefined, lifeMs).id);
    teams.revokeKey(ids[3]!);
    database.close();
    const rows = await printed(t, listKeys);
    assert.deepEqual(Object.fromEntries(rows.map(([id, , , , state]) => [id, state])), {
      [ids[0]!]: "live",
      [ids[1]!]: "live",
      [ids[2]!]: "expired",
      [ids[3]!]: "revoked",
    });
  });
});

test("keys revoke ends a key and those made with it, or that key only, and logs each", async (t) => {
  const said = t.mock.method(console, "log", () => {});
  const lines = () => {
    const printed = said.mock.calls.map(({ arguments: [line] }) => String(line));
    said.mock.resetCalls();
    return printed;
  };
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    const teamId = teams.ensure("blue").id;
    const first = teams.createKey(teamId, "first").id;
    const second = teams.issueKey({ teamId, keyId: first }, "second").id;
    const third = teams.issueKey({ teamId, keyId: second }, "third").id;
    const revoke = (keyId: string, keepMade: boolean) => revokeKey({ words: [keyId], isSet: () => keepMade });
    await revoke(second, true);
    assert.deepEqual([teams.isLive(second), teams.isLive(third)], [false, true]);
    assert.deepEqual(lines(), [second]);
    await revoke(first, false);
    assert.deepEqual([teams.isLive(first), teams.isLive(third)], [false, false]);
    assert.deepEqual(lines().toSorted(), [first, third].toSorted());
    const entries = new AuditRows(database).list(teamId, { limit: 10 });
    assert.deepEqual(
      entries.map(({ action, keyId, subject }) => [action, keyId, subject]).toSorted(),
      [first, second, third].map((id) => ["key.revoke", "operator", id]).toSorted(),
    );
    database.close();
  });
});
