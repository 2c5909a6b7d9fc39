import assert from "node:assert/strict";
import { test } from "node:test";
import { Tickets } from "./tickets.ts";

const path = "/v1/capsules/x/pty";
const of = (teamId: string) => ({ teamId, team: teamId, keyId: "key", keyName: "" });

test("a team that hoards tickets keeps no other from having one; a used one makes room", () => {
  const tickets = new Tickets();
  const red = Array.from({ length: 1_000 }, () => tickets.issue(of("red"), path).ticket);
  assert.throws(() => tickets.issue(of("red"), path), { code: "quota_exceeded" });
  const { ticket } = tickets.issue(of("blue"), path);
  assert.equal(tickets.redeem(ticket, path)?.teamId, "blue");
  assert.equal(tickets.redeem(red[0] as string, path)?.teamId, "red");
  assert.equal(tickets.redeem(red[0] as string, path), undefined);
  tickets.issue(of("red"), path);
  assert.throws(() => tickets.issue(of("red"), path), { code: "quota_exceeded" });
});
