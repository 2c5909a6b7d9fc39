import assert from "node:assert/strict";
import { test } from "node:test";
import { CommandTurns } from "./command-turns.ts";

test("each side of a turn is warmed up, and goes first in every other one", async () => {
  const ran: string[] = [];
  const turns = await CommandTurns.start(async (cmd, ...args) => {
    ran.push(cmd);
    return args.length > 2 || cmd === "/bin/true" ? "" : "[3, 1, 2]";
  });
  assert.deepEqual(ran.splice(0), ["/bin/sh"]); // the spawner
  await turns.take();
  const commands = Array<string>(7).fill("/bin/true");
  assert.deepEqual(ran.splice(0), ["/bin/sh", ...commands]);
  await turns.take();
  assert.deepEqual(ran, [...commands, "/bin/sh"]);
  assert.deepEqual(turns.inside, [
    [3, 1, 2],
    [3, 1, 2],
  ]);
  assert.deepEqual(
    turns.outside.map((turn) => turn.length),
    [5, 5],
  );
});

test("a turn's commands are held against the same turn's spawns, by their middle ones", async () => {
  const turns = await CommandTurns.start(async () => "[]");
  turns.inside.push([5, 1, 2], [10, 11, 12]);
  turns.outside.push([4, 9, 3], [13, 13, 13]);
  assert.deepEqual(turns.above(), [2, 2]);
});
