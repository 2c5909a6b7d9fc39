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
  assert.deepEqual(teams.authenticate(key), { teamId: team.id, keyId: id, keyName: "laptop", team: "blue" });
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

test("malformed, unknown and empty keys are invalid", () => {
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

test("a key is invalid from its expiry on, and its row is removed when the next key is made", () => {
  let now = 1_000;
  const { teams, rows } = fresh(() => now);
  const { id: teamId } = teams.ensure("blue");
  const { key, expiresAt } = teams.issueKey(teamId, "dashboard", 500);
  assert.equal(expiresAt, 1_500);
  now = 1_499;
  assert.equal(teams.authenticate(key)?.teamId, teamId);
  now = 1_500;
  assert.equal(teams.authenticate(key), undefined);
  assert.deepEqual(teams.keysOf(teamId), []);
  teams.issueKey(teamId, "next");
  assert.deepEqual(
    rows.keys().map((row) => row.label),
    ["next"],
  );
});

test("a team sees and revokes its own live keys only", () => {
  let now = 1_000;
  const { teams } = fresh(() => now);
  const [blue, red] = [teams.ensure("blue").id, teams.ensure("red").id];
  const mine = teams.issueKey(blue, "mine");
  const theirs = teams.issueKey(red, "theirs");
  now = 2_000;
  teams.authenticate(mine.key);
  assert.deepEqual(teams.keysOf(blue), [
    {
      id: mine.id,
      name: "mine",
      prefix: mine.key.slice(0, 9),
      createdAt: 1_000,
      lastUsedAt: 2_000,
      expiresAt: null,
    },
  ]);
  for (const id of [theirs.id, "key-never"]) assert.throws(() => teams.revokeKeyOf(blue, id), { code: "not_found" });
  assert.ok(teams.authenticate(theirs.key));
  teams.revokeKeyOf(blue, mine.id);
  assert.equal(teams.authenticate(mine.key), undefined);
  assert.throws(() => teams.revokeKeyOf(blue, mine.id), { code: "not_found" });
});

test("a team has a bounded number of live keys; revoked ones are removed after 30 days", () => {
  let now = 1_000;
  const { teams, rows } = fresh(() => now);
  const { id: teamId } = teams.ensure("blue");
  const made = Array.from({ length: 1_000 }, () => teams.issueKey(teamId, "one of many"));
  assert.throws(() => teams.issueKey(teamId, "one too many"), { code: "quota_exceeded" });
  teams.revokeKeyOf(teamId, made[0]!.id);
  teams.issueKey(teamId, "in its place");
  assert.equal(rows.keys().length, 1_001);
  now += 30 * 24 * 3_600_000;
  teams.revokeKeyOf(teamId, made[1]!.id);
  teams.issueKey(teamId, "later");
  assert.equal(rows.keys().length, 1_001, "the key revoked a month ago is gone, the other one still listed");
});

test("listeners of a key are called once when it is revoked, also by another process", () => {
  const { teams, rows } = fresh();
  const team = teams.ensure("blue").id;
  const [here, elsewhere, kept] = ["a", "b", "c"].map((label) => teams.createKey(team, label).id) as [
    string,
    string,
    string,
  ];
  const notified: string[] = [];
  for (const id of [here, elsewhere, elsewhere, kept]) teams.onRevoked(id, () => notified.push(id));
  teams.onRevoked(here, () => notified.push("removed"))();
  teams.revokeKey(here);
  assert.deepEqual(notified, [here]);
  new Teams(rows).revokeKey(elsewhere);
  assert.equal(teams.isLive(elsewhere), false);
  assert.deepEqual(notified, [here]);
  teams.checkRevoked();
  teams.checkRevoked();
  assert.deepEqual(notified, [here, elsewhere, elsewhere]);
  assert.equal(teams.isLive(kept), true);
});
