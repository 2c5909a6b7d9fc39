/**
 * Hosts of a cluster whose every statement, request to a peer and action waits its turn, by a seed; statements are lost, unanswered or
 * late, daemons and machines die, database and bucket are away, a database is put back. After each step, and at the end, the hosts agree
 * with each other, and with what clients were told.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Random, type seedOf } from "../conformance/random.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { bucketSeeds } from "./simulation/faults.ts";
import { liveByLives } from "./simulation/life.ts";
import { Schedules, told } from "./simulation/schedules.ts";
import { violationOnThreads } from "./simulation/threads.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const { CAPSULE_TEST_SCHEDULES: asked, CAPSULE_TEST_SEED: one } = process.env;

test("a schedule is the same each time", { skip }, async () => {
  using _ = liveByLives();
  await using schedules = await Schedules.open(server);
  for (const seed of [...seedsFrom(1, 6), ...seedsFrom(bucketSeeds, 4)]) {
    const [first, again] = [await schedules.play(seed), await schedules.play(seed)];
    assert.deepEqual(again.trace, first.trace, `seed ${seed}`);
  }
});

test("hosts agree with each other and with what clients were told, whatever is lost, late or dies", {
  skip,
}, async (t) => {
  const violation = await violationOnThreads(server, [...seedsOf(t)]);
  assert.ok(violation === undefined, violation === undefined ? "" : told(violation));
});

/** The same ones, of which none has a violation; in the long form others, and as many. Every second one of these has a bucket. */
function* seedsOf(t: Parameters<typeof seedOf>[0]): Generator<number> {
  if (one !== undefined) yield Number(one);
  else if (asked === undefined) yield* [...seedsFrom(1, 500), ...seedsFrom(bucketSeeds, 150)];
  else {
    const random = new Random(t);
    for (let left = Number(asked); left > 0; left--) yield random.below(2 ** 31) + (left % 2) * bucketSeeds;
  }
}

function seedsFrom(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => first + index);
}
