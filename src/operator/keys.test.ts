import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { databasePath } from "../daemon.ts";
import { openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { Teams } from "../teams/teams.ts";
import { keys } from "./keys.ts";

test("keys list says which keys are live, revoked and expired", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "keys-"));
  const { CAPSULE_DATA: before } = process.env;
  process.env.CAPSULE_DATA = folder;
  try {
    const database = openDatabase(databasePath(folder));
    const teams = new Teams(new TeamRows(database));
    const team = teams.ensure("blue").id;
    const lives = { endless: null, lasting: 60_000, over: -1, ended: null };
    const ids = Object.entries(lives).map(([name, lifeMs]) => teams.createKey(team, name, undefined, lifeMs).id);
    teams.revokeKey(ids[3]!);
    database.close();
    const said = t.mock.method(console, "log", () => {});
    assert.equal(await keys(["list"]), 0);
    const rows = said.mock.calls.map(({ arguments: [line] }) => String(line).split("\t"));
    assert.deepEqual(Object.fromEntries(rows.map(([id, , , , state]) => [id, state])), {
      [ids[0]!]: "live",
      [ids[1]!]: "live",
      [ids[2]!]: "expired",
      [ids[3]!]: "revoked",
    });
  } finally {
    if (before === undefined) delete process.env.CAPSULE_DATA;
    else process.env.CAPSULE_DATA = before;
    rmSync(folder, { recursive: true });
  }
});
