/**
 * The time of a "not found" answer must not reveal whether another team has the resource. Measured below HTTP, with
 * less noise: the layers above get the same error in both cases.
 *
 * Samples of both kinds are interleaved in random order and compared by rank: the probability that a request for
 * another team's resource took longer than one for a missing resource. Equal times give 0.50 with a deviation of 0.03,
 * whatever the load of the machine. One additional query gives 0.9 or more.
 */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { CapsuleError } from "../../src/wire/errors.ts";
import { Random } from "../conformance/random.ts";
import { buildFloors, running } from "../fakes/floors.ts";

const samples = 250;
const questionsEach = 10;
/** Seven deviations on each side. */
const oddsMin = 0.3;
const oddsMax = 0.7;

/** Share of the pairs in which the first is the larger; ties count half. */
function oddsOfLarger(some: number[], others: number[]): number {
  const ranked = [...some.map((ms) => ({ ms, isOne: true })), ...others.map((ms) => ({ ms, isOne: false }))];
  ranked.sort((a, b) => a.ms - b.ms);
  let below = 0;
  let larger = 0;
  for (const { isOne } of ranked) {
    if (isOne) larger += below;
    else below++;
  }
  return larger / (some.length * others.length);
}

describe("requests for another team's resource take as long as for a missing one", () => {
  const never = { capsule: `cl-${"0".repeat(25)}`, template: "nobody", key: "key-000000000000" };
  const theirs = { ...never, template: "theirs" };
  const { teams, capsules, templates, team, other, ...floors } = buildFloors();

  before(async () => {
    const their = { ...floors, teams, capsules, templates, team: other, other: team };
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
    "a key to be revoked": ({ key }) => teams.revokeKeyOf(team, key),
  };

  for (const [thing, question] of Object.entries(questions)) {
    /** Time of several consecutive requests, in milliseconds. */
    const sample = async (of: typeof never) => {
      const began = performance.now();
      for (let i = 0; i < questionsEach; i++) {
        try {
          await question(of);
          assert.fail("it was found");
        } catch (error) {
          if (!(error instanceof CapsuleError) || error.code !== "not_found") throw error;
        }
      }
      return performance.now() - began;
    };

    test(thing, async (t) => {
      const random = new Random(t);
      const times = { theirs: [] as number[], missing: [] as number[] };
      for (let i = 0; i < samples; i++) {
        const isTheirsFirst = random.below(2) === 0;
        if (isTheirsFirst) times.theirs.push(await sample(theirs));
        times.missing.push(await sample(never));
        if (!isTheirsFirst) times.theirs.push(await sample(theirs));
      }
      const odds = oddsOfLarger(times.theirs, times.missing);
      t.diagnostic(`odds ${odds.toFixed(3)}`);
      assert.ok(odds > oddsMin && odds < oddsMax, `another team's takes longer with odds of ${odds}`);
    });
  }
});
