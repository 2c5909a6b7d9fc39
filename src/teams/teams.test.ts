import assert from "node:assert/strict";
import { test } from "node:test";
import { openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { Teams } from "./teams.ts";

function fresh(now = () => 1_000): { teams: Teams; rows: TeamRows } {
  const rows = new TeamRows(openDatabase(":memory:"));
  return { teams: new Teams(rows, now), rows };
}

test("a key names its team until it is revoked", () => {
  const { teams } = fresh();
  const team = teams.ensure("blue");
  const { key, id } = teams.createKey(team.id, "laptop");
  assert.deepEqual(teams.authenticate(key), { teamId: team.id, keyId: id, team: "blue" });
  teams.revokeKey(id);
  assert.equal(teams.authenticate(key), undefined);
  assert.throws(() => teams.revokeKey(id), { code: "not_found" });
});

test("a key has a recognizable prefix and at least 160 random bits, and is stored only as a hash", () => {
  const { teams, rows } = fresh();
  const { key } = teams.createKey(teams.ensure("blue").id, "");
  assert.match(key, /^capk_[0-9a-f]{40,}$/);
  assert.ok(!JSON.stringify(rows.keys()).includes(key.slice(5)));
});

test("malformed, unknown and empty keys are nobody's", () => {
  const { teams } = fresh();
  const { key } = teams.createKey(teams.ensure("blue").id, "");
  for (const bad of ["", "capk_", `${key} `, key.toUpperCase(), `capk_${"0".repeat(48)}`, "x".repeat(100_000)]) {
    assert.equal(teams.authenticate(bad), undefined);
  }
});

test("ensure makes a team once; bad names are refused", () => {
  const { teams } = fresh();
  assert.equal(teams.ensure("blue").id, teams.ensure("blue").id);
  for (const bad of ["", "-x", "a b", "a/b", "x".repeat(65), "é"]) {
    assert.throws(() => teams.ensure(bad), { code: "invalid_request" });
  }
});

test("the last use is recorded by flush, not by each request", () => {
  let now = 5_000;
  const { teams } = fresh(() => now);
  const { key } = teams.createKey(teams.ensure("blue").id, "");
  now = 6_000;
  teams.authenticate(key);
  assert.equal(teams.keys()[0]?.lastUsedAt, null);
  teams.flush();
  assert.equal(teams.keys()[0]?.lastUsedAt, 6_000);
});
