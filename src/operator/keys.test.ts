import assert from "node:assert/strict";
import { test } from "node:test";
import { inNewDataFolder } from "../../test/data-folder.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { Teams } from "../teams/teams.ts";
import { listKeys } from "./keys.ts";

test("keys list says which keys are live, revoked and expired", async (t) => {
  const said = t.mock.method(console, "log", () => {});
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    const team = teams.ensure("blue").id;
    const lives = { endless: null, lasting: 60_000, over: -1, ended: null };
    const ids = Object.entries(lives).map(([name, lifeMs]) => teams.createKey(team, name, undefined, lifeMs).id);
    teams.revokeKey(ids[3]!);
    database.close();
    assert.equal(await listKeys(), 0);
    const rows = said.mock.calls.map(({ arguments: [line] }) => String(line).split("\t"));
    assert.deepEqual(Object.fromEntries(rows.map(([id, , , , state]) => [id, state])), {
      [ids[0]!]: "live",
      [ids[1]!]: "live",
      [ids[2]!]: "expired",
      [ids[3]!]: "revoked",
    });
  });
});
