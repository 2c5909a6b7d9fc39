import assert from "node:assert/strict";
import { test } from "node:test";
import { OneTimeTokens } from "./one-time-tokens.ts";

const path = "/v1/capsules/x/pty";
const identityOf = (teamId: string) => ({ teamId, team: teamId, keyId: "key", keyName: "" });
const [red, blue] = [identityOf("red"), identityOf("blue")];

test("a token names its holder once", () => {
  const links = OneTimeTokens.signInLinks();
  const { token } = links.issue(red);
  assert.match(token, /^signin_[0-9a-f]{48}$/);
  assert.equal(links.redeem(token), red);
  assert.equal(links.redeem(token), undefined);
  assert.equal(links.redeem("signin_"), undefined);
});

test("a token shown for another scope is used up", () => {
  const tickets = OneTimeTokens.socketTickets();
  const { token } = tickets.issue(red, path);
  assert.match(token, /^wst_[0-9a-f]{48}$/);
  assert.equal(tickets.redeem(token, "/v1/capsules/y/pty"), undefined);
  assert.equal(tickets.redeem(token, path), undefined);
});

test("a sign-in link expires after 5 minutes, a ticket after 30 seconds", () => {
  for (const [make, lifeMs] of [
    [OneTimeTokens.signInLinks, 300_000],
    [OneTimeTokens.socketTickets, 30_000],
  ] as const) {
    let [now, ticks] = [1_000, 5];
    const tokens = make({ now: () => now, ticks: () => ticks });
    const [early, late] = [tokens.issue(red), tokens.issue(red)];
    assert.equal(early.expiresAt, 1_000 + lifeMs);
    now = 1e12;
    ticks = 5 + lifeMs - 1;
    assert.equal(tokens.redeem(early.token), red, "a wall clock that is set forward ends none");
    now = 0;
    ticks = 5 + lifeMs;
    assert.equal(tokens.redeem(late.token), undefined, "one that is set back revives none");
  }
});

test("a team has a bounded number of unused tokens; use and expiry make room; other teams are not affected", () => {
  for (const [make, liveMax] of [
    [OneTimeTokens.signInLinks, 100],
    [OneTimeTokens.socketTickets, 1_000],
  ] as const) {
    let ticks = 0;
    const tokens = make({ now: () => 0, ticks: () => ticks });
    const issued = Array.from({ length: liveMax }, () => tokens.issue(red, path).token);
    assert.throws(() => tokens.issue(red, path), { code: "quota_exceeded" });
    assert.equal(tokens.redeem(tokens.issue(blue, path).token, path), blue);
    assert.equal(tokens.redeem(issued[0] as string, path), red);
    tokens.issue(red, path);
    assert.throws(() => tokens.issue(red, path), { code: "quota_exceeded" });
    ticks = 300_000;
    tokens.issue(red, path);
  }
});
