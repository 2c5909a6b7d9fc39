/** The simulation finds mistakes that were made on purpose: one that it does not find would be found by nobody. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { bucketSeeds } from "./simulation/faults.ts";
import { mutants } from "./simulation/mutants.ts";
import { firstViolation } from "./simulation/schedules.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
/** When the known one of a mutant finds it no longer: another program takes other steps by it. */
const others = 600;

for (const mutant of mutants) {
  test(mutant.name, { skip }, async (t) => {
    const known = await firstViolation(server, [mutant.seed], { mutant, atOnce: 1 });
    const first = mutant.seed < bucketSeeds ? 1 : bucketSeeds;
    const seeds = Array.from({ length: others }, (_, index) => first + index);
    const found = known ?? (await firstViolation(server, seeds, { mutant }));
    assert.ok(found !== undefined, `no schedule of ${others} finds it`);
    t.diagnostic(`seed ${found.seed}: ${found.violation?.message}`);
  });
}
