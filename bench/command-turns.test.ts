import assert from "node:assert/strict";
import { test } from "node:test";
import { CommandTurns } from "./command-turns.ts";

const spawns = "[90, 80, 3, 1, 2, 5, 4]";
const coldMs = 50;
const warmMs = 3;

test("the first of each side are left out, and either side goes first", async (t) => {
  let clock = 0;
  t.mock.method(performance, "now", () => clock);
  let ran: string[] = [];
  const turns = await CommandTurns.start(async (cmd) => {
    ran.push(cmd);
    clock += ran.filter((each) => each === "/bin/true").length <= 2 ? coldMs : warmMs;
    return spawns;
  });
  assert.equal(ran[0], "/bin/sh"); // the spawner
  assert.deepEqual(new Set(ran.slice(1)), new Set(["/bin/true"]));
  const commands = Array<string>(7).fill("/bin/true");
  ran = [];
  await turns.take(true);
  assert.deepEqual(ran, ["timeout", ...commands]);
  ran = [];
  await turns.take(false);
  assert.deepEqual(ran, [...commands, "timeout"]);
  assert.deepEqual(turns.inside, [
    [3, 1, 2, 5, 4],
    [3, 1, 2, 5, 4],
  ]);
  const warm = Array<number>(5).fill(warmMs);
  assert.deepEqual(turns.outside, [warm, warm]);
});

test("a turn's commands are held against the same turn's spawns, by their middle ones", async () => {
  const turns = await CommandTurns.start(async () => "[]");
  turns.inside.push([5, 1, 2], [10, 11, 12]);
  turns.outside.push([4, 9, 3], [13, 13, 13]);
  assert.deepEqual(turns.above(), [2, 2]);
});
