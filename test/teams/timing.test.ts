/**
 * The time of a "not found" answer must not reveal whether another team has the resource. Compared below HTTP, by the
 * statements that both questions run: the layers above get the same error in both cases, and another team
 * could measure one more query.
 */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { fakeService, running } from "../fakes/fake-service.ts";
import { Statements } from "./statements.ts";

describe("requests for another team's resource take as long as for a missing one: they run the same statements", () => {
  const statements = new Statements();
  const never = { capsule: `cl-${"0".repeat(25)}`, template: "nobody", key: "key-000000000000" };
  const theirs = { ...never, template: "theirs" };
  const { teams, capsules, templates, team, other, ...service } = fakeService({ database: statements.database });
  const ours = teams.createKey(team, "ours").id;

  before(async () => {
    const their = { ...service, teams, capsules, templates, team: other, other: team };
    const capsuleId = await running(their);
    await templates.capture(other, { capsuleId, name: theirs.template, overwrite: false });
    theirs.capsule = await running(their);
    theirs.key = teams.createKey(other, "theirs").id;
  });

  /** Requests that must fail because the resource is missing. */
  const questions: Record<string, (of: typeof never) => unknown> = {
    "a capsule to be looked at": ({ capsule }) => capsules.get(team, capsule),
    "a capsule to be entered": ({ capsule }) => capsules.permit(team, capsule, "exec"),
    "a capsule to be destroyed": ({ capsule }) => capsules.destroy(team, capsule),
    "a template to be deleted": ({ template }) => templates.delete(team, template),
    "a key to be revoked": ({ key }) => teams.revokeKeyOf({ teamId: team, keyId: ours }, key),
  };

  for (const [thing, question] of Object.entries(questions)) {
    test(thing, async () => {
      const costOf = async (of: typeof never) => {
        statements.take();
        await assert.rejects(async () => question(of), { code: "not_found" });
        return statements.take();
      };
      const cost = await costOf(theirs);
      assert.ok(cost.length > 0, "nothing was looked up");
      assert.deepEqual(cost, await costOf(never));
    });
  }
});
