import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { keysPerTurn, listenersPerTurn } from "./key-ends.ts";
import { Teams } from "./teams.ts";

function fresh(now = () => 1_000, ticks = () => 0): { teams: Teams; rows: TeamRows } {
  const rows = new TeamRows(openDatabase(":memory:"));
  return { teams: new Teams(rows, { now, ticks }), rows };
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

test("a session's key is invalid from its expiry on, and its row is removed when the next key is made", () => {
  let now = 1_000;
  const { teams, rows } = fresh(() => now);
  const { id: teamId } = teams.ensure("blue");
  const first = teams.createKey(teamId, "first");
  const { key, expiresAt } = teams.issueSessionKey({ teamId, keyId: first.id }, "dashboard", 500);
  assert.equal(expiresAt, 1_500);
  now = 1_499;
  assert.equal(teams.authenticate(key)?.teamId, teamId);
  now = 1_500;
  assert.equal(teams.authenticate(key), undefined);
  const labels = () =>
    rows
      .keys()
      .map((row) => row.label)
      .toSorted();
  assert.deepEqual([teams.keysOf(teamId).length, labels()], [1, ["dashboard", "first"]]);
  teams.issueKey({ teamId, keyId: first.id }, "next");
  assert.deepEqual(labels(), ["first", "next"]);
});

test("a team sees and revokes its own live keys only", () => {
  let now = 1_000;
  const { teams } = fresh(() => now);
  const [blue, red] = [teams.ensure("blue").id, teams.ensure("red").id];
  const mine = teams.createKey(blue, "mine");
  const theirs = teams.createKey(red, "theirs");
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
      madeBy: null,
    },
  ]);
  const own = { teamId: blue, keyId: mine.id };
  for (const id of [theirs.id, "key-never"]) assert.throws(() => teams.revokeKeyOf(own, id), { code: "not_found" });
  assert.ok(teams.authenticate(theirs.key));
  teams.revokeKeyOf(own, mine.id);
  assert.equal(teams.authenticate(mine.key), undefined);
  assert.throws(() => teams.revokeKeyOf(own, mine.id), { code: "not_found" });
});

test("a team has a bounded number of live keys; revoked ones are removed after 30 days", () => {
  let now = 1_000;
  const { teams, rows } = fresh(() => now);
  const { id: teamId } = teams.ensure("blue");
  const first = { teamId, keyId: teams.createKey(teamId, "first").id };
  const made = Array.from({ length: 999 }, () => teams.issueKey(first, "one of many"));
  assert.throws(() => teams.issueKey(first, "one too many"), { code: "quota_exceeded" });
  teams.revokeKeyOf(first, made[0]!.id);
  teams.issueKey(first, "in its place");
  assert.equal(rows.keys().length, 1_001);
  now += 30 * 24 * 3_600_000;
  teams.revokeKeyOf(first, made[1]!.id);
  teams.issueKey(first, "later");
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

/** A key of the operator, and one made by each of the others in turn: `first` made `second`, which made `third`. */
function chain(now?: () => number) {
  const { teams, rows } = fresh(now);
  const teamId = teams.ensure("blue").id;
  const by = (keyId: string) => ({ teamId, keyId });
  const first = teams.createKey(teamId, "first");
  const second = teams.issueKey(by(first.id), "second");
  const third = teams.issueKey(by(second.id), "third");
  const live = () => teams.keysOf(teamId).map(({ name }) => name);
  return { teams, rows, teamId, by, first, second, third, live };
}

test("revoking a key revokes all that it made, directly and indirectly, and no other", () => {
  const { teams, by, first, second, third, live } = chain();
  const sibling = teams.issueKey(by(first.id), "sibling");
  const session = teams.issueSessionKey(by(second.id), "session", 1_000);
  assert.deepEqual(
    [first, second, third, sibling, session].map(({ madeBy }) => madeBy),
    [null, first.id, second.id, first.id, second.id],
  );
  const notified: string[] = [];
  for (const { id, name } of [first, second, third, sibling, session]) teams.onRevoked(id, () => notified.push(name));
  const revoked = teams.revokeKeyOf(by(second.id), second.id);
  assert.deepEqual(revoked.toSorted(), [second.id, third.id, session.id].toSorted());
  assert.deepEqual(live(), ["first", "sibling"]);
  assert.deepEqual(notified.toSorted(), ["second", "session", "third"], "their sockets are closed");
});

test("a key that has ended makes no other", () => {
  let now = 1_000;
  const { teams, by, second, first } = chain(() => now);
  const session = teams.issueSessionKey(by(first.id), "session", 500);
  teams.revokeKey(second.id);
  now = 1_500;
  for (const { id } of [second, session, { id: "key-never" }]) {
    assert.throws(() => teams.issueKey(by(id), "late"), { code: "unauthorized" });
  }
});

test("a key ends with its maker at the latest, a session too", () => {
  let now = 1_000;
  const { teams, rows } = fresh(() => now);
  const teamId = teams.ensure("blue").id;
  const maker = teams.createKey(teamId, "of limited life", undefined, 500);
  const requester = { teamId, keyId: maker.id };
  now = 1_200;
  const made = [
    teams.issueKey(requester, "endless"),
    teams.issueSessionKey(requester, "long", 12 * 3_600_000),
    teams.issueSessionKey(requester, "short", 100),
  ];
  assert.deepEqual(
    made.map(({ expiresAt }) => expiresAt),
    [1_500, 1_500, 1_300],
  );
  const ofSession = teams.issueKey({ teamId, keyId: made[2]!.id }, "made in the short session");
  assert.equal(ofSession.expiresAt, 1_500);
  assert.deepEqual(
    rows.keys().filter(({ expiresAt }) => expiresAt === null),
    [],
  );
});

test("a key made in a session counts as made by the key behind the session: it outlives the session, not that key", () => {
  let now = 1_000;
  const { teams, by, second, live } = chain(() => now);
  const session = teams.issueSessionKey(by(second.id), "session", 500);
  const another = teams.issueSessionKey(by(session.id), "session of the session", 500);
  const made = teams.issueKey(by(another.id), "made in it");
  assert.deepEqual([another.madeBy, made.madeBy, made.expiresAt], [second.id, second.id, null]);
  teams.revokeKeyOf(by(session.id), another.id);
  now = 1_500;
  assert.deepEqual(live(), ["first", "second", "third", "made in it"]);
  teams.revokeKeyOf(by(second.id), second.id);
  assert.deepEqual(live(), ["first"]);
});

test("a key ends itself and what it made; one that the operator made ends any of its team; a session ends none above it", () => {
  const { teams, by, teamId, first, second, third, live } = chain();
  const session = teams.issueSessionKey(by(second.id), "session", 500);
  const beside = teams.createKey(teamId, "beside");
  const made = teams.issueKey(by(session.id), "made in it");
  const refused: [requester: string, key: string][] = [
    [session.id, second.id],
    [session.id, first.id],
    [session.id, beside.id],
    [third.id, second.id],
    [third.id, session.id],
    [second.id, first.id],
    [second.id, beside.id],
    ["key-never", third.id],
  ];
  for (const [requester, key] of refused) {
    assert.throws(() => teams.revokeKeyOf(by(requester), key), { code: "forbidden", message: /was not made with/ });
  }
  assert.deepEqual(live(), ["first", "second", "third", "session", "beside", "made in it"]);
  teams.revokeKeyOf(by(session.id), made.id);
  teams.revokeKeyOf(by(session.id), third.id);
  teams.revokeKeyOf(by(session.id), session.id);
  assert.deepEqual(live(), ["first", "second", "beside"]);
  teams.revokeKeyOf(by(beside.id), first.id);
  assert.deepEqual(live(), ["beside"]);
});

test("a session that the operator made ends no key but itself", () => {
  const { teams, rows } = fresh();
  const { id: teamId } = teams.ensure("blue");
  const first = teams.createKey(teamId, "first");
  const row = { id: "key-session", teamId, label: "session", prefix: "capk_1234", createdAt: 1_000 };
  rows.insertKey({ ...row, hash: "00".repeat(32), expiresAt: null, madeBy: null, isSession: true });
  const session = { teamId, keyId: row.id };
  assert.throws(() => teams.revokeKeyOf(session, first.id), { code: "forbidden" });
  assert.deepEqual(teams.revokeKeyOf(session, row.id), [row.id]);
});

test("a key can be revoked without those it made, which then count as made by its maker", () => {
  const { teams, first, second, third, live } = chain();
  assert.deepEqual(teams.revokeKey(second.id, true), [second.id]);
  assert.deepEqual(live(), ["first", "third"]);
  assert.equal(teams.keysOf(teams.ensure("blue").id).find(({ id }) => id === third.id)?.madeBy, first.id);
  assert.throws(() => teams.revokeKey(second.id, true), { code: "not_found" });
  teams.revokeKey(first.id);
  assert.deepEqual(live(), []);
});

test("a clock that is set back revives no key and gives none a longer life", () => {
  let [now, ticks] = [1_000, 0];
  const { teams } = fresh(
    () => now,
    () => ticks,
  );
  const { id: teamId } = teams.ensure("blue");
  const requester = { teamId, keyId: teams.createKey(teamId, "first").id };
  const ended = teams.issueSessionKey(requester, "ended", 500);
  now = 1e12; // set forward
  assert.equal(teams.authenticate(ended.key), undefined);
  now = 1_100;
  assert.equal(teams.authenticate(ended.key), undefined, "it is not valid again");
  const session = teams.issueSessionKey(requester, "session", 500);
  ticks += 499.9;
  assert.equal(teams.authenticate(session.key)?.keyId, session.id);
  ticks += 0.2;
  assert.equal(teams.authenticate(session.key), undefined, "it ends after its life");
});

test("1 000 listeners of a key that ends are called 64 in a turn of the loop, none of them after it was removed", async () => {
  const { teams } = fresh();
  const { id } = teams.createKey(teams.ensure("blue").id, "laptop");
  let calls = 0;
  const removers = Array.from({ length: 1_000 }, () => teams.onRevoked(id, () => void calls++));
  teams.revokeKey(id);
  assert.equal(calls, listenersPerTurn);
  removers.at(-1)?.();
  for (let turn = 2; calls < 999; turn++) {
    await nextTurn();
    assert.equal(calls, Math.min(turn * listenersPerTurn, 999));
  }
});

/** A key of the operator with a listener, and 249 keys made with it that have one each; `calls` counts their calls. */
function madeWithOne(t: TestContext) {
  const { teams, rows } = fresh();
  const teamId = teams.ensure("blue").id;
  const maker = teams.createKey(teamId, "maker").id;
  const made = Array.from({ length: 249 }, () => teams.issueKey({ teamId, keyId: maker }, "made").id);
  let calls = 0;
  for (const id of [maker, ...made]) teams.onRevoked(id, () => void calls++);
  const isLive = t.mock.method(rows, "isLive");
  return { teams, rows, maker, calls: () => calls, readings: () => isLive.mock.callCount() };
}

test("the listeners of many keys that end together are called in turns of the event loop", async (t) => {
  const { teams, maker, calls } = madeWithOne(t);
  teams.revokeKey(maker);
  assert.equal(calls(), listenersPerTurn);
  for (let turn = 2; calls() < 250; turn++) {
    await nextTurn();
    assert.equal(calls(), Math.min(turn * listenersPerTurn, 250));
  }
});

test("keys that another process may have revoked are read 100 in a turn, and a check under way is not begun again", async (t) => {
  const { teams, rows, maker, calls, readings } = madeWithOne(t);
  new Teams(rows).revokeKey(maker);
  const checked = teams.checkRevoked();
  assert.equal(readings(), keysPerTurn);
  await teams.checkRevoked();
  assert.ok(readings() <= 2 * keysPerTurn, String(readings()));
  await checked;
  assert.equal(readings(), 250);
  while (calls() < 250) await nextTurn();
});
