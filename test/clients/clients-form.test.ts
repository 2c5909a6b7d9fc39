/** The suite's own conditions: the load beside it is there and goes again, and no example is left out. */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { BusyCores, roundsOf } from "./clients-form.ts";
import { clientOf, examples } from "./examples.ts";

test("CAPSULE_CLIENTS_ROUNDS is a number of rounds, by default one", () => {
  assert.equal(roundsOf(undefined), 1);
  assert.equal(roundsOf("2"), 2);
  for (const wrong of ["0", "", "two", "2x", "-1", "100"])
    assert.throws(() => roundsOf(wrong), /CAPSULE_CLIENTS_ROUNDS/);
});

test("a busy process per core runs until it is disposed of", async () => {
  /** User and system time in ticks, fields 14 and 15. */
  const ticksOf = (pid: number) => {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
    return Number(fields[11]) + Number(fields[12]);
  };
  const load = new BusyCores();
  const { pids } = load;
  assert.equal(pids.length, availableParallelism());
  await waitFor("each of them takes processor time", async () => pids.every((pid) => ticksOf(pid) > 5));
  await load[Symbol.asyncDispose]();
  for (const pid of pids) assert.ok(!existsSync(`/proc/${pid}`), `process ${pid} is left`);
});

test("each example of docs/CLIENTS.md is run, and one more or fewer is noticed", () => {
  const known = examples();
  for (const each of known) assert.ok(clientOf(each), each.client);
  const fences = known.map(({ language, code }) => `\`\`\`${language}\n${code}\`\`\`\n`);
  assert.equal(examples(fences.join("\n")).length, known.length);
  assert.throws(() => examples(fences.slice(1).join("\n")), /examples/);
  assert.throws(() => examples([...fences, fences[0]].join("\n")), /examples/);
});
