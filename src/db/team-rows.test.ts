/** Costs of a team's keys that do not grow with what other teams, or it before, have revoked. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDatabase } from "./database.ts";
import { revokedKeysMax, TeamRows } from "./team-rows.ts";

/** Rows of teams with keys over a database that notes what is prepared. */
function open(t: { after: (work: () => void) => void }) {
  const database = openDatabase(":memory:");
  t.after(() => database.close());
  const prepared: string[] = [];
  const prepare = database.prepare.bind(database);
  database.prepare = (sql) => {
    prepared.push(sql);
    return prepare(sql);
  };
  const rows = new TeamRows(database);
  database.prepare = prepare;
  const insert = (id: string, teamId: string) =>
    rows.insertKey({
      ...{ id, teamId, label: id, prefix: id, hash: Buffer.from(id).toString("hex"), createdAt: 0 },
      ...{ expiresAt: null, madeBy: null, isSession: false },
    });
  for (const id of ["red", "blue"]) rows.ensure({ id, name: id, createdAt: 0 });
  return { database, prepared, rows, insert };
}

test("no lookup of a team reads the keys of all teams, nor its revoked ones", (t) => {
  const { database, prepared } = open(t);
  const ofTeams = prepared.filter((sql) => /api_keys/.test(sql) && !/ORDER BY t\.name/.test(sql)); // that one is the operator's
  assert.ok(ofTeams.length >= 10);
  for (const sql of ofTeams) {
    const plan = database.prepare(`EXPLAIN QUERY PLAN ${sql}`).all() as { detail: string }[];
    for (const { detail } of plan) assert.doesNotMatch(detail, /SCAN (k|api_keys)\b/, sql);
  }
  const [live] = ofTeams.filter((sql) => /k\.team_id = :teamId/.test(sql));
  const details = (database.prepare(`EXPLAIN QUERY PLAN ${live}`).all() as { detail: string }[]).map(
    (row) => row.detail,
  );
  assert.match(details.join("\n"), /USING INDEX api_keys_of_team \(team_id=\? AND revoked_at=\?\)/);
});

test("the last 1 000 revoked keys of a team are kept; another team's count for themselves", (t) => {
  const { rows, insert } = open(t);
  insert("blue-0", "blue");
  rows.revoke("blue-0", 0);
  for (let index = 0; index < revokedKeysMax + 5; index++) {
    insert(`red-${index}`, "red");
    rows.revoke(`red-${index}`, index);
  }
  insert("red-live", "red");
  const ids = rows.keys().map(({ id }) => id);
  assert.equal(ids.length, revokedKeysMax + 2);
  assert.deepEqual(
    ["blue-0", "red-live", "red-0", "red-4", "red-5"].map((id) => ids.includes(id)),
    [true, true, false, false, true],
  );
});
